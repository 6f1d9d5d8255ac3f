"""A study that tuned a played run while it went: real windows of steps that follow from values. It has ended."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

from tests.support.workbench.played_run import STEP_SECONDS, PlayedRun, PlayedStarter
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.live import windows as live_windows
from tuning.execution.live.exploitation import final_config
from tuning.execution.live.limits import SlowdownBudget
from tuning.execution.live.transition import WindowTransitions
from tuning.execution.live.windows import LiveWindows
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study

RUN, NAME = "20260101-000000-5e1f", "live"
STEPS = 480
_SPACE = {"batch.micro_batch": [1, 2], "compression.method": ["none", "int8", "topk"]}


def write_live(home: Path) -> str:
    """Writes it into a home; returns its name."""
    guard = {"threshold": 0.01, "min_steps": 1}
    file = live_study(trials=6, space=_SPACE, loss_guard=guard, live={"steps": STEPS, "checkpoint_every": 20})
    assert file.live is not None
    study = home / STUDIES / NAME
    study.mkdir(parents=True)
    starter = PlayedStarter(home, study, NAME, file.live, RUN, time.time() - STEPS * STEP_SECONDS)
    baseline = file.search_space.config(file.search_space.baseline[0])
    windows = LiveWindows(home, starter, SlowdownBudget(file.live), WindowTransitions(baseline, file.guard))
    # However slow the machine is, the run has the values that it is told to have.
    with mock.patch.object(live_windows, "IDLE_SECONDS", 3_600.0):
        found = run_study(file, study, windows)
    windows.leave(final_config(windows, file, found), NAME)
    run = starter.current
    assert isinstance(run, PlayedRun)
    run.finish()
    return NAME
