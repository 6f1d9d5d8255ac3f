"""What tuning a run while it goes has cost."""

from __future__ import annotations

import pytest

from workbench.analysis.live_report import Since, WindowRow, _invested, since_words


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
