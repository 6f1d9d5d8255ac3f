"""Runs side by side: each number is the one that the runs' own files have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from engine.config.errors import InputError
from engine.run import run_folder
from profilers.records.reader import RunRecords
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.conftest import Run
from tests.workbench.pages.homes import full_home
from tuning.analysis import paired_comparison
from workbench.analysis import compare, studies
from workbench.analysis.compare import Comparison
from workbench.home import runs
from workbench.terminal import compare as compare_text

STEPS = 30


def written(home: Path, run: str, step_seconds: float, **values: Any) -> Path:
    """A finished run of four ranks or fewer."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    folder = RunFolder(home, FakeRun(run, {"parallel.dp": 2} | given, step_seconds, STEPS))
    folder.write(STEPS)
    return folder.folder


@pytest.fixture
def pair(home: Path) -> Comparison:
    """A run, and one with half of its tokens a step that is slower for as many."""
    first = written(home, "20260101-000000-aaaa", 0.1, batch__global_batch=16)
    second = written(home, "20260101-000000-bbbb", 0.08, batch__global_batch=8)
    return compare.compare(home, [runs.load(folder) for folder in (first, second)])


def summary(home: Path, run: str) -> dict[str, Any]:
    return run_folder.read_json(home / run / run_folder.SUMMARY) or {}


def test_only_what_differs_in_the_configuration_is_told(pair: Comparison) -> None:
    assert [(row.key, row.values) for row in pair.differences] == [("batch.global_batch", [16, 8])]
    assert pair.same_keys > 50


def test_phases_are_for_the_same_tokens_and_sum_to_the_step(pair: Comparison, home: Path) -> None:
    first, second = (summary(home, side.id) for side in pair.runs)
    assert second["tokens_per_step"] * 2 == first["tokens_per_step"]
    by_name = {row.name: row.seconds for row in pair.phases}
    assert by_name["backward"] == pytest.approx(
        [first["phases"]["backward"], 2 * second["phases"]["backward"]]
    )
    steps = [first["step_seconds"]["mean"], 2 * second["step_seconds"]["mean"]]
    assert [sum(row.seconds[at] or 0 for row in pair.phases) for at in (0, 1)] == pytest.approx(
        steps, rel=0.1
    )
    assert "different numbers of tokens" in " ".join(pair.notes)


def test_collectives_stand_beside_each_other(pair: Comparison, home: Path) -> None:
    first, second = (summary(home, side.id)["communication"] for side in pair.runs)
    assert [(row.operation, row.axis) for row in pair.collectives] == [("all_reduce", "dp")]
    (row,) = pair.collectives
    assert row.bytes == pytest.approx([first[0]["bytes"], 2 * second[0]["bytes"]])
    assert row.exposed_seconds == pytest.approx(
        [first[0]["exposed_seconds"], 2 * second[0]["exposed_seconds"]]
    )


def test_losses_stand_against_steps_tokens_and_seconds(pair: Comparison, home: Path) -> None:
    for curve, tokens in zip(pair.losses, (first_tokens(pair, 0), first_tokens(pair, 1)), strict=True):
        assert curve.steps == list(range(STEPS))
        assert curve.tokens == [(step + 1) * tokens for step in range(STEPS)]
        assert curve.losses == summary(home, curve.run)["losses"]
        rows = RunRecords(home / curve.run / run_folder.RECORDS).table(0, "step").rows()
        last = rows[-1].start_unix + rows[-1].step_seconds - rows[0].start_unix  # type: ignore[union-attr]
        assert curve.seconds[-1] == pytest.approx(last)


def first_tokens(pair: Comparison, at: int) -> int:
    tokens = pair.runs[at].tokens_per_step
    assert tokens is not None
    return tokens


def test_of_one_run_each_the_interval_is_that_of_independent_means(pair: Comparison, home: Path) -> None:
    """Against the delta method on the steps' own seconds, which resampling has to come near."""
    seconds = [np.array(summary(home, side.id)["round_samples"]) for side in pair.runs]
    rates = [first_tokens(pair, at) / one.mean() for at, one in enumerate(seconds)]
    error = math.hypot(*(one.std(ddof=1) / one.mean() / math.sqrt(len(one)) for one in seconds))
    (found,) = pair.pairs
    assert found.how == "steps"
    assert found.ratio == pytest.approx(rates[1] / rates[0])
    assert found.low is not None and found.high is not None
    assert math.log(found.high / found.low) == pytest.approx(2 * stats.norm.ppf(0.975) * error, rel=0.4)
    assert found.verdict == "worse"
    said = compare_text.pair(found, compare_text.names(pair))
    assert said.startswith(
        f"B is slower than A: B has {found.ratio:.3f} x the rate of A, 95 % {found.low:.3f} to"
    )
    assert "measure both again" in said


def test_what_was_measured_in_turns_is_compared_round_by_round(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds share a drift that single runs would take for a difference."""
    full_home(home)
    folder = home / "studies" / "quickstart"
    found = studies.document(folder)
    fast, slow = found.result.trials[4], found.result.trials[0]
    drift = [1.0, 0.8, 1.3, 0.9, 1.1, 1.2]
    arms = {
        "fast": [1100 * one * (1 + 0.002 * at) for at, one in enumerate(drift)],
        "slow": [1000 * one for one in drift],
    }
    result = with_rounds(found.result, {fast.number: arms["fast"], slow.number: arms["slow"]})
    monkeypatch.setattr(compare, "document", lambda _: studies.StudyDocument(result, None, None))
    views = [runs.load(home / str(row.run)) for row in (slow, fast)]
    (told,) = compare.compare(home, views).pairs
    lead = paired_comparison.leads(np.log(arms["fast"]).tolist(), np.log(arms["slow"]).tolist(), 0.05)[-1]
    assert (told.how, told.rounds, told.verdict) == ("rounds", 6, "better")
    assert (told.ratio, told.low, told.high) == pytest.approx(tuple(lead.interval))
    assert told.ratio == pytest.approx(1.1055, rel=1e-3)


def with_rounds(result: Any, values: dict[int, list[float]]) -> Any:
    from dataclasses import replace

    from tuning.report.study_result import ArmRow, ConfirmationRounds, RoundRow

    arms = [
        ArmRow(
            trial,
            "",
            False,
            None,
            [RoundRow(at, None, one, round=at) for at, one in enumerate(rates)],
            1.0,
            None,
            None,
        )
        for trial, rates in values.items()
    ]
    first = next(iter(values))
    settings = ConfirmationRounds(
        arms=arms, order=[], winner=first, tied=[], recommended=first, decided_by="", why="", error=0.05
    )
    return replace(result, confirmation_rounds=settings)


def test_other_work_a_token_is_said(home: Path) -> None:
    one = written(home, "20260101-000000-aaaa", 0.1)
    other = written(home, "20260101-000000-bbbb", 0.1, data__sequence_length=64)
    notes = compare.compare(home, [runs.load(one), runs.load(other)]).notes
    assert any("not the same work" in note and "data.sequence_length" in note for note in notes)


def test_a_run_without_numbers_stands_beside_the_others(home: Path) -> None:
    one = written(home, "20260101-000000-aaaa", 0.1)
    empty = RunFolder(home, FakeRun("20260101-000000-bbbb", {}, 0.1, 5, ending=None)).folder
    found = compare.compare(home, [runs.load(one), runs.load(empty)])
    assert found.runs[1].tokens_per_second is None
    assert (found.pairs[0].how, found.pairs[0].ratio) == ("nothing", None)
    assert "still going" in " ".join(found.notes)


def test_the_command_takes_runs_and_trials(home: Path, command: Run) -> None:
    full_home(home)
    plain = command("compare", "quickstart:0", "quickstart:4", "a7e2")
    assert plain.code == 0, plain.err
    assert "quickstart trial 0" in plain.out and "compression.method" in plain.out
    document = command("compare", "quickstart:0", "quickstart:4", "--json").document
    assert [side["trial"] for side in document["runs"]] == ["0", "4"]
    assert {row["key"] for row in document["differences"]} == {"compression.method"}
    assert document["pairs"][0]["verdict"] == "better"


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a7e2"], ("2 to 8",)),
        (["a7e2", "a7e2"], ("named twice",)),
        (["a7e2", "nowhere"], ("nowhere",)),
        (["a7e2", "quickstart:99"], ("trial 99",)),
        (["a7e2", "3c01:1"], ("is no trial",)),
        (["a7e2"] * 9, ("2 to 8",)),
    ],
)
def test_what_cannot_be_compared_is_refused(
    home: Path, command: Run, ids: list[str], words: tuple[str, ...]
) -> None:
    full_home(home)
    command("compare", *ids).refused("id", *words)


def test_a_study_stands_for_its_best_run(home: Path) -> None:
    full_home(home)
    best = studies.document(home / "studies" / "quickstart").result.best
    assert best is not None
    assert compare.run_of(home, "quickstart").id == best.run
    with pytest.raises(InputError, match="twice"):
        compare.find_runs(home, ["quickstart", f"quickstart:{best.trial}"])
