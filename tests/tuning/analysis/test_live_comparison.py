"""A live study on a machine that becomes slower: windows rank beside each other, not by what they measured."""

from __future__ import annotations

import io
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.offline import OfflineExecutor, build_summary
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import (
    CostlyBaselineError,
    EndOfSearchError,
    EndOfTrialsError,
    OnStart,
    Ran,
    ShouldStop,
)
from tuning.execution.live.windows import CONFIRM
from tuning.report.study_result import StudyResult
from tuning.sampling.optuna_study import OptunaStudy
from tuning.spec.study_file import StudyFile
from tuning.storage.state import Trial
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.analysis.studies import StudyDocument
from workbench.figures.study import best_so_far
from workbench.pages.study.details import IN_TURNS, numbers
from workbench.terminal.study import print_study
from workbench.text import study as study_text


class Windows(OfflineExecutor):
    """Seconds of a step of one window after the other, and what was told of it beside the leader; no rounds."""

    def __init__(self, told: list[tuple[float, dict[str, Any]]]) -> None:
        super().__init__()
        self._told = told

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        if labels["purpose"] == CONFIRM:
            raise EndOfTrialsError("rounds cost too much")
        if self._number == len(self._told):
            raise EndOfSearchError("another window costs too much")
        return super().__call__(config, labels, should_stop, on_start)

    def play(self, config: RunConfig, run: str) -> Ran:
        seconds, told = self._told[self._number - 1]
        return RunOutcome(Ending.COMPLETED), build_summary(run, config, [seconds, seconds * 1.01] * 4, **told)


def beside(leader: int, ratio: float, level: float) -> dict[str, Any]:
    ends = {"leader_ratio_low": ratio * 0.96, "leader_ratio_high": ratio * 1.04}
    return {"leader_trial": leader, "leader_ratio": ratio, "leader_level": level} | ends


def searched(file: StudyFile, home: Path, told: list[tuple[float, dict[str, Any]]]) -> StudyResult:
    return run_study(file, home / STUDIES / file.name, Windows(told))


def exact(**more: Any) -> StudyFile:
    base = {"batch": {"global_batch": 16, "micro_batch": 1}, "train": {"steps": 12, "warmup": 2}}
    return live_study(base=base, space={"batch.micro_batch": [1, 2, 4, 8]}, confirm_repeats=8, **more)


@pytest.mark.parametrize("objective", ["tokens_per_second", "step_seconds"])
def test_the_best_is_who_leads_beside_the_others(tmp_path: Path, objective: str) -> None:
    """All but the first two were measured while the machine was half as fast; the last one leads nobody."""
    told = [(1.0, {}), (0.8, beside(0, 1.25, 1.0)), (1.28, beside(1, 1.25, 2.0)), (1.42, beside(2, 0.9, 2.0))]
    found = searched(exact(objective=objective), tmp_path, told)
    assert found.best is not None and found.baseline is not None and found.gain is not None
    assert (found.best.trial, found.baseline.trial, found.gain.in_turns) == (2, 0, True)
    over = [row.over_baseline for row in found.trials]
    assert over == pytest.approx([1.0, 1.25, 1.5625, 1.5625 * 0.9]) and found.gain.ratio == over[2]
    assert found.runner_up is not None and found.runner_up.trial == 3
    printed = io.StringIO()
    print_study(Console(file=printed, width=200), StudyDocument(found, None, None))
    rows = [line.split()[0] for line in printed.getvalue().splitlines() if "completed" in line]
    assert rows == ["2", "3", "1", "0"]
    values = {row.number: row.value for row in found.trials}
    assert best_so_far(found.trials) == [
        (0, values[0]),
        (1, values[1]),
        (2, values[2]),
        (3, values[2]),
    ]


def test_where_the_baseline_stays_best_the_nearest_is_who_was_nearest_beside_it(tmp_path: Path) -> None:
    """On a machine that was twice as fast for it, its own value is above the baseline's."""
    told = [(1.0, {}), (0.6, beside(0, 0.8, 0.5)), (2.0, beside(0, 0.9, 1.0)), (1.0, beside(0, 0.7, 1.0))]
    found = searched(exact(), tmp_path, told)
    assert found.best is not None and found.best.trial == 0
    assert "none of 3 others was faster; the nearest, dp=2" in found.result_line
    assert found.result_line.partition("reaches ")[2].startswith("0.90x"), "a value of its own time: 0.50x"


def test_the_tile_of_a_gain_in_turns_says_why_it_is_not_the_ratio_of_two_values(tmp_path: Path) -> None:
    told = [(1.0, {}), (0.8, beside(0, 1.25, 1.0)), (1.28, beside(1, 1.25, 2.0)), (1.42, beside(2, 0.9, 2.0))]
    tiles = numbers(searched(exact(), tmp_path, told))
    assert tiles["Gain"][0] == "+56.2 %" and IN_TURNS in tiles["Gain"][1]
    plain = searched(exact(), tmp_path / "apart", [(1.0, {}), (0.5, {"leader_level": None})])
    assert IN_TURNS not in numbers(plain)["Gain"][1]


def test_samplers_learn_what_windows_are_worth_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all that was measured while the machine was slow would be bad for them."""
    learned: dict[int, float | None] = {}

    def tell(index: OptunaStudy, trial: Trial) -> None:
        learned[trial.number] = trial.value
        told_before(index, trial)

    told_before = OptunaStudy.tell
    monkeypatch.setattr(OptunaStudy, "tell", tell)
    told = [(1.0, {}), (0.8, beside(0, 1.25, 1.0)), (1.28, beside(1, 1.25, 2.0)), (1.42, beside(2, 0.9, 2.0))]
    found = searched(exact(), tmp_path, told)
    values = [row.value or 0.0 for row in found.trials]
    assert values[2] < values[0] < values[1] and learned[0] == values[0]
    assert learned[1] == pytest.approx(1.25 * values[0]) and learned[2] == pytest.approx(1.5625 * values[0])


def test_the_search_that_follows_tries_what_was_next_best_beside_the_leader(tmp_path: Path) -> None:
    told = [(1.0, {}), (0.8, beside(0, 1.25, 1.0)), (1.28, beside(1, 1.25, 2.0)), (1.42, beside(2, 0.9, 2.0))]
    file = exact()
    before = searched(file, tmp_path, told)
    assert before.best is not None
    after = searched(
        file.looking_again(before.best.config), tmp_path, [(1.0, {}), (1.0, beside(0, 1.0, 1.0))]
    )
    sizes = [row.config["batch.micro_batch"] for row in (*before.trials, *after.trials)]
    assert sizes[4:] == [sizes[2], sizes[3]], "not the second, which was measured on a faster machine"


def test_a_window_without_a_chain_counts_at_the_level_of_its_time(tmp_path: Path) -> None:
    """And those that are held beside it count by that."""
    told = [(1.0, {}), (0.8, beside(0, 1.25, 1.0)), (1.5, {"leader_level": 2.0}), (9.0, beside(2, 1.1, 6.0))]
    found = searched(exact(), tmp_path, told)
    assert [row.over_baseline for row in found.trials][2:] == pytest.approx([2 / 1.5, 1.1 * 2 / 1.5])
    assert found.best is not None and found.best.trial == 3
    assert found.gain is not None and not found.gain.in_turns and "one window of each" in found.result_line
    assert found.gain.ratio == pytest.approx(1.1 * 2 / 1.5) and found.gain.verdict == "better"


def lossy() -> StudyFile:
    base: dict[str, Any] = live_study()._dump_given()["base"]
    space = {"compression.method": ["none", "int8"]}
    guard = {"threshold": 0.05, "min_steps": 1}
    return live_study(base=base, space=space, confirm_repeats=8, loss_guard=guard)


def test_what_is_lossy_is_told_beside_the_baseline_on_the_same_steps(tmp_path: Path) -> None:
    """Not beside the baseline's first window, since when the machine became half as fast."""
    losses = {"validation_loss": 2.0, "losses": [2.0] * 12}
    told = [(1.0, losses), (1.25, beside(0, 1.6, 2.0) | losses | {"reference_loss": 2.0})]
    found = searched(lossy(), tmp_path, told)
    assert found.best is not None and found.gain is not None
    assert (found.best.trial, found.gain.verdict) == (1, "better")
    assert found.gain.ratio == pytest.approx(1.6)
    assert "beside the baseline's of the same steps" in found.result_line
    assert found.fastest_lossy is not None and found.fastest_lossy.faster_than_best_exact
    del told[1][1]["leader_ratio"]
    apart = searched(lossy(), tmp_path / "apart", [told[0], (0.5, told[1][1] | {"leader_level": None})])
    assert apart.gain is not None and not apart.gain.in_turns
    assert "one window of each" in apart.result_line and "one run" not in apart.result_line


class Dear(Windows):
    """Rounds with the baseline are too dear. In those without it the third trial is faster than the second."""

    def __init__(self, told: list[tuple[float, dict[str, Any]]]) -> None:
        super().__init__(told)
        self.again: list[int] = []

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        if labels["purpose"] != CONFIRM:
            return super().__call__(config, labels, should_stop, on_start)
        if config.batch.micro_batch == 1:
            raise CostlyBaselineError("the baseline takes ten times as long")
        self.again.append(config.batch.micro_batch)  # the first is the best of the search
        count, leads = len(self.again), config.batch.micro_batch != self.again[0]
        seconds = (0.9 + 0.001 * (count % 3) if leads else 1.0) * (1 + 0.01 * (count // 2))
        name = f"again-{count}"
        if on_start is not None:
            on_start(Path(name))
        return RunOutcome(Ending.COMPLETED), build_summary(name, config, [seconds] * 4)


def test_close_leaders_are_told_apart_without_a_dear_baseline(tmp_path: Path) -> None:
    """The one that the search has second wins; its gain is that beside the leader."""
    file = exact(trials=3)
    told = [(10.0, {}), (1.0, beside(0, 10.0, 1.0)), (1.01, beside(1, 0.99, 1.0))]
    windows = Dear(told)
    folder = tmp_path / STUDIES / file.name
    found = run_study(file, folder, windows)
    rounds, turned = found.confirmation_rounds, {row.number: row.config for row in found.trials}
    assert rounds is not None and rounds.spared == "the baseline takes ten times as long"
    assert {arm.trial for arm in rounds.arms} == {1, 2} and rounds.beside == 1
    assert found.best is not None and found.best.trial == rounds.winner == 2
    assert {turned[number]["batch.micro_batch"] for number in (1, 2)} == set(windows.again)
    gain = found.gain
    assert gain is not None and gain.in_turns and not gain.confirmed
    mean = statistics.geometric_mean(row.value or 0.0 for arm in rounds.arms[1:] for row in arm.rounds)
    assert found.best.value == pytest.approx(mean) and "95 % of runs" in found.result_line
    assert found.baseline is not None and found.baseline.value == found.trials[0].value
    assert gain.ratio == pytest.approx(9.9) and gain.verdict == "better"
    assert "the baseline is too dear to be measured again" in found.result_line
    assert rounds.spared in study_text.caption(found)
    assert run_study(file, folder, Dear(told)).best == found.best, "and under the next controller"
