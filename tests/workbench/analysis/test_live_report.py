"""What tuning a run while it goes has cost."""

from __future__ import annotations

import pytest

from workbench.analysis.live_report import WindowRow, _invested


def row(trial: int, confirms: int | None = None) -> WindowRow:
    return WindowRow(trial, confirms, "", "run", 0, 1, "completed", 1.0, None, None, None, None)


def test_windows_of_the_baseline_cost_nothing() -> None:
    windows = [row(0), row(1), row(2), row(3), row(4, confirms=0), row(5, confirms=2)]
    saved = [-3.0, 5.0, -1.0, None, -7.0, -0.5]
    assert _invested(windows, saved, baseline=0) == pytest.approx(1.5)
    assert _invested(windows[:1], saved[:1], baseline=0) == 0.0
