"""What one rank carries through a run; there is no global state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch

from engine.comm.groups import Groups
from engine.config.compression import NO_PLAN, Plan
from engine.config.layout import Layout
from engine.config.run_config import RunConfig
from engine.run.commands import StopControl
from engine.run.messages import Seat
from engine.run.progress import Progress
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.timer import StepTimer


@dataclass(slots=True)
class RankContext:
    """One rank's configuration, place, device and instruments, the run's folder, how long its groups wait,
    and its seat if it runs in the lab.

    ``config`` and ``plan`` are what holds now: an order or a planner may replace them between two steps. All else
    stays.
    """

    rank: int
    config: RunConfig
    layout: Layout
    device: torch.device
    groups: Groups
    timer: StepTimer
    recorder: CollectiveRecorder
    writer: RecordWriter
    control: StopControl
    progress: Progress | None = None
    folder: Path = Path()
    patience: timedelta = timedelta(minutes=30)
    seat: Seat | None = None
    #: None where a schedule has one stage.
    actions: ActionRecorder | None = None
    plan: Plan = NO_PLAN

    def note(self, text: str) -> None:
        """Tell readers of the run's summary something; the same from several ranks counts once."""
        self.writer.event("note", text=text)

    def state(self, name: str) -> None:
        """Tell the launcher what this rank is about to do outside a step."""
        if self.progress is not None:
            self.progress.enter_state(self.rank, self.timer.step, name)
