"""What tuning a run while it goes has cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import Played, Ran, played_summary
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.analysis.live_report import Since, WindowRow, _invested, _windows, since_words
from workbench.pages.study.live import _beside


def row(trial: int, confirms: int | None = None) -> WindowRow:
    return WindowRow(trial, confirms, "", "run", 0, 1, "completed", 1.0, None, None, None, None)


def test_windows_of_the_baseline_cost_nothing() -> None:
    windows = [row(0), row(1), row(2), row(3), row(4, confirms=0), row(5, confirms=2)]
    saved = [-3.0, 5.0, -1.0, None, -7.0, -0.5]
    assert _invested(windows, saved, baseline=0) == pytest.approx(1.5)
    assert _invested(windows[:1], saved[:1], baseline=0) == 0.0


def test_what_was_lost_is_not_called_saved() -> None:
    assert "12.0 s (10.0 to 14.0) saved in 5 steps" in since_words(Since(5, 10, 12.0, 10.0, 14.0))
    assert "2.0 s (-1.0 to 5.0) lost in 5 steps" in since_words(Since(5, 10, -2.0, -5.0, 1.0))
    assert "step 5, with the values that it has now: 1.0 s saved" in since_words(
        Since(5, 10, 1.0, None, None)
    )


class Beside(Played):
    """Windows that are a quarter faster than the leader around them."""

    def play(self, config: RunConfig, run: str) -> Ran:
        told = {"leader_level": 1.1, "leader_ratio": 1.25, "leader_ratio_low": 1.1, "leader_ratio_high": 1.4}
        return RunOutcome(Ending.COMPLETED), played_summary(run, config, [1.0] * 4, **told)


def test_a_window_tells_how_it_did_beside_the_leader_and_what_settled(tmp_path: Path) -> None:
    """From the journal and the window's own folder to the row of page and --json."""
    file = live_study(confirm_repeats=0, trials=2)
    result = run_study(file, tmp_path / STUDIES / file.name, Beside())
    names = [row.run for row in result.trials]
    covered = {"run": "the-run", "first": 4, "end": 16, "seconds": 3.0, "settling": 3}
    (tmp_path / str(names[0])).mkdir()
    run_folder.write_json(tmp_path / str(names[0]) / run_folder.STATUS, {"window": covered})
    [found] = _windows(tmp_path, result)
    assert (found.leader_ratio, found.leader_ratio_low, found.leader_ratio_high) == (1.25, 1.1, 1.4)
    assert (found.leader_level, found.settling_steps, found.first, found.end) == (1.1, 3, 4, 16)
    assert _beside(found) == "1.25 x (1.10 to 1.40)" and _beside(row(0)) == ""
