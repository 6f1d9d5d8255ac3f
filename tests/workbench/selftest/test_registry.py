"""``selftest``: how made-up checks end, what is refused, and what every check in the registry says of itself."""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import accumulate
from pathlib import Path
from typing import get_args

import pytest
import torch

from engine.config.sections import Parallel
from engine.footprint.activations import Part
from engine.run.ownership import is_running
from engine.schedules.registry import SCHEDULES
from tests.support.workbench import selftests
from tests.support.workbench.selftests import PIDS, made_up, no_room
from tests.workbench.conftest import Run
from workbench.selftest import registry, runner
from workbench.selftest.check_context import CheckContext
from workbench.selftest.checks import layouts, measurements, warm_ranks
from workbench.selftest.checks.layouts import largest_difference
from workbench.selftest.isolation import SelftestRequest
from workbench.selftest.redaction import Redactor
from workbench.selftest.results import DOCUMENT, RANKS, Outcome, Row, Selftest, load, newest


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check's process finds this checkout's tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def run(folder: Path, *checks: registry.Check, stop_at: str | None = None) -> Selftest:
    """These checks; a stop comes as soon as the one of that name has left something."""
    began: list[str] = []
    started = folder / "evidence"
    started.mkdir()

    def should_stop() -> bool:
        return began[-1] == stop_at

    def tell(check: registry.Check, row: Row | None) -> None:
        began.append(check.name)
        on_disk = load(started)
        assert on_disk is not None
        assert row is None or on_disk.checks[-1] == row

    return runner.run(started, checks, SelftestRequest("cpu", 2), Redactor(), should_stop, tell)


@pytest.mark.drawn(1, of="long selftests")
@pytest.mark.usefixtures("importable")
def test_each_check_ends_by_itself_and_the_next_one_runs(tmp_path: Path) -> None:
    names = ("good", "bad", "noisy", "raises", "dies", "silent")
    found = run(tmp_path, *map(made_up, names), made_up("impossible", needs=no_room), made_up("good"))
    rows = {row.name: row for row in found.checks}
    assert {name: (row.outcome, row.reason) for name, row in rows.items()} == {
        "good": ("pass", "as it should be"),
        "bad": ("fail", "7 instead of 8"),
        "noisy": ("not_possible", "cannot decide: +1 % to +3 %"),
        "raises": ("fail", "RuntimeError: the bridge is out"),
        "dies": ("fail", "its process died without a verdict: SIGSEGV"),
        "silent": ("fail", "its process died without a verdict: exit code 3 (the last words)"),
        "impossible": ("not_possible", "there is no room"),
    }
    assert rows["noisy"].measured == {"low_fraction": 0.01, "high_fraction": 0.03}
    assert rows["raises"].evidence == ["checks/raises/output.log"]
    assert "Traceback" in (tmp_path / "evidence" / rows["raises"].evidence[0]).read_text()
    assert (found.complete, found.interrupted, found.good) == (True, None, False)
    assert found.outcomes == {"pass": 2, "fail": 4, "not_possible": 2}


@pytest.mark.drawn(1, of="long selftests")
@pytest.mark.usefixtures("importable")
def test_a_check_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    limit = 5.0
    for attempt in range(4):  # on a busy machine it may be ended before it began
        place = tmp_path / str(attempt)
        place.mkdir()
        found = run(place, made_up("hangs", limit_seconds=limit))
        assert found.checks[0].outcome == "fail"
        assert found.checks[0].reason == f"took longer than its limit of {limit:.0f} s, and was ended"
        left = place / "evidence" / "checks" / "hangs" / PIDS
        if left.exists():
            break
        limit *= 2
    pids = json.loads(left.read_text())
    assert len(pids) == 2
    assert not any(map(is_running, pids))


@pytest.mark.usefixtures("importable")
def test_a_stop_keeps_what_was_found(tmp_path: Path) -> None:
    found = run(tmp_path, made_up("bad"), made_up("hangs"), made_up("good"), stop_at="hangs")
    assert [row.name for row in found.checks] == ["bad"]
    assert (found.complete, found.interrupted) == (False, "hangs")
    assert load(tmp_path / "evidence") == found


@pytest.mark.parametrize(("options", "words"), [
    (("--only", "machine,nvmll"), ("--only", "nvmll", "no such check", "nvml")),
    (("--skip", "x"), ("--skip", "'x'", "no such check")),
    (("--only", "nvml", "--skip", "nvml"), ("--skip", "leaves no check")),
    (("--only", ","), ("--only", "leaves no check")),
    (("--ranks", "3"), ("--ranks", "3", "2, 4, 8")),
    (("--device", "tpu"), ("device", "tpu")),
])  # fmt: skip
def test_bad_input_is_one_line(command: Run, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    command("selftest", *options).refused(*words)


def test_a_folder_that_cannot_take_evidence_is_refused(command: Run, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    command("selftest", "--only", "nvml", "--out", tmp_path / "full").refused("--out", "full", "is not empty")
    inside = tmp_path / "full" / "something" / "inside"
    command("selftest", "--only", "nvml", "--out", inside).refused("--out", "cannot be written")
    command("selftest", "--only", "nvml", "--out", "/").refused("--out", "'/'", "is not empty")
    command("selftest", "--only", "nvml", "--out", "").refused("--out=''", "is empty; name a new folder")


@pytest.mark.parametrize("kind", ["file", "folder", "broken link"])
def test_a_zip_that_is_there_is_not_replaced(command: Run, tmp_path: Path, kind: str) -> None:
    packed = tmp_path / "new.zip"
    if kind == "broken link":
        packed.symlink_to(tmp_path / "nowhere")
    else:
        packed.mkdir() if kind == "folder" else packed.write_text("mine")
    done = command("selftest", "--only", "nvml", "--out", tmp_path / "new")
    done.refused("--out", str(tmp_path / "new"), f"its zip would replace {packed}; name another folder")
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == ["new.zip"]


def test_names_are_unique_and_every_check_says_what_it_proves() -> None:
    assert len(set(registry.NAMES)) == len(registry.CHECKS)
    for check in registry.CHECKS:
        assert check.proves.endswith(".")
        assert check.function.__doc__
        assert check.limit_seconds > 0


def test_every_check_is_told_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "selftest.md").read_text("utf-8")
    assert [name for name in registry.NAMES if f"`{name}`" not in text] == []


@pytest.mark.parametrize("ranks", RANKS)
def test_every_axis_and_schedule_of_the_engine_is_there_and_legal(ranks: int, tmp_path: Path) -> None:
    from engine.config.validation.rules import problems

    bench = CheckContext("cpu", ranks, tmp_path)
    kinds = (layouts.data, layouts.tensor, layouts.context, layouts.expert, layouts.pipeline)
    configs = [bench.config(layouts.SIZES | values) for kind in kinds for values in kind(ranks).values()]
    assert [str(problem) for config in configs for problem in problems(config)] == []
    methods = get_args(Parallel.model_fields["cp_method"].annotation)
    assert {config.schedule.kind for config in configs} == set(SCHEDULES)
    assert {config.parallel.cp_method for config in configs if config.parallel.cp > 1} == set(methods)
    assert {config.parallel.zero_stage for config in configs} == {0, 1, 2, 3}
    assert all(max(config.parallel.tp, config.parallel.ep) in (1, ranks) for config in configs)


@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_of_data_parallelism_take_many_buckets(ranks: int, tmp_path: Path) -> None:
    """With one bucket a rank that averages only its first would look exact."""
    from engine.footprint.weights import parameters_by_stage
    from engine.parallel.data.buckets import GradientBuckets

    bench = CheckContext("cpu", ranks, tmp_path)
    for values in (layouts.data(ranks) | layouts.expert(ranks)).values():
        config = bench.config(layouts.SIZES | values)
        weights = parameters_by_stage(config, [Part(layouts.SIZES["model.layers"], True, True)])[0].weights
        each = [torch.nn.Parameter(torch.zeros(w.rows, w.columns)) for w in weights for _ in range(w.copies)]
        assert len(GradientBuckets(each, None, config.overlap.bucket_mb * 2**20).buckets) >= 4


def test_differences_are_never_hidden() -> None:
    assert largest_difference([1.0, 2.5], [1.0, 2.0]) == 0.5
    for found in ([], [1.0], [1.0, None], [1.0, math.nan]):
        assert largest_difference(found, [1.0, 2.0]) == math.inf


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [([0.99, 1.0, 1.005], "pass"), ([1.02, 1.03], "fail"), ([0.98, 1.04], "not_possible")],
)
def test_what_recording_costs_is_only_said_where_the_interval_allows(
    ratios: list[float], outcome: str
) -> None:
    verdict = measurements.judge(ratios)
    assert verdict.outcome is Outcome(outcome)
    assert verdict.measured["added_low_fraction"] == pytest.approx(min(ratios) - 1)


def test_the_newest_readable_one_is_found(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    folder = selftests.write(tmp_path)
    later = folder.with_name("20270101-000000-0000")
    later.mkdir()
    (later / DOCUMENT).write_text("{")
    found = newest(tmp_path)
    assert found is not None
    assert found[0] == folder
    assert found[1].outcomes == {"pass": 1, "fail": 1, "not_possible": 1}


def resting(*steps: float) -> list[list[int]]:
    """Two ranks after each trial: one grows by so many MB in turn, the other one does not."""
    sizes = accumulate((300.0, *steps))
    return [[round(1e6 * size), 300_000_000] for size in sizes]


@pytest.mark.parametrize(
    ("steps", "grown"),
    [
        ((1.05, 1.1, 1.0, 1.08), 1_065_000),
        ((0.12, 0.06, 0.23, 0.08), 100_000),
        ((3.0, 0.05, 0.06, 0.05), 55_000),
        ((2.0, -0.1, 2.0, 2.0), 0),
    ],
)
def test_what_a_rank_keeps_of_every_trial_is_seen(steps: tuple[float, ...], grown: int) -> None:
    found = warm_ranks.usual_growth(resting(*steps))
    assert found == pytest.approx(grown, abs=1)
    assert bool(warm_ranks._check_growth(found)) == (grown > 750_000)
    assert warm_ranks.usual_growth([*resting(*steps), []]) is None
    assert warm_ranks._check_growth(None)
