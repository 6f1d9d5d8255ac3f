"""A run without ranks that carries out the orders of a live study: its steps, losses and turns are in its folder as
real ranks would write them. What a step takes and learns follows from the values that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.run import run_folder
from engine.run.commands import BACK, SET, TRY
from profilers.records.schema import StepSample
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tuning.execution.live.ongoing_run import ChangeResult, OngoingRun
from tuning.execution.live.starter import Starter, note_run

STEP_SECONDS = 0.2
#: What a value makes of a step's seconds, and of what it learns.
FASTER = {
    ("batch.micro_batch", 2): 0.94,
    ("compression.method", "int8"): 0.8,
    ("compression.method", "topk"): 0.7,
}
LEARNS = {("compression.method", "int8"): 0.99, ("compression.method", "topk"): 0.5}
#: Steps that are done whenever somebody looks; so often somebody looks before ranks wait no longer.
AT_ONCE, PATIENCE = 4, 3


@dataclass
class PlayedSteps(FakeRun):
    """Its steps begin one after the other, and its loss falls by what was learned so far."""

    clock: float = 0.0
    learned: float = 0.0
    first_measured: int = 0

    def begin(self, config: RunConfig) -> None:
        """With this configuration instead of one made of values."""
        self.config, self.world_size = config, layout_of(config).world_size
        self.clock, self.first_measured = self.started_unix, config.train.warmup
        self.turn(config)

    def turn(self, config: RunConfig) -> None:
        """Steps have these values from now on."""
        self.config, flat = config, config.flat()
        self.step_seconds = STEP_SECONDS
        for (key, value), factor in FASTER.items():
            self.step_seconds *= factor if flat[key] == value else 1.0

    def learn(self) -> None:
        """One step's worth."""
        flat = self.config.flat()
        self.learned += min(
            (share for (key, value), share in LEARNS.items() if flat[key] == value), default=1.0
        )

    @property
    def loss(self) -> float:
        """On any text."""
        return float(2.1 + 3.45 * 0.99**self.learned)

    def step(self, rank: int, number: int) -> StepSample:
        found = super().step(rank, number)
        loss = None if found.loss is None else self.loss + self.random.gauss(0, 0.02)
        return replace(found, measured=number >= self.first_measured, loss=loss)

    def begin_of(self, number: int) -> float:
        """The next one begins now, whatever its number."""
        return self.clock


class PlayedRun(OngoingRun):
    """Some of its steps are done whenever its records are looked at anew, until it has to wait for an order."""

    def __init__(self, written: RunFolder, steps: PlayedSteps) -> None:
        super().__init__(written.folder)
        self._written, self._steps = written, steps
        self._next, self._hold, self._waited = 0, 0, 0
        self._copy: tuple[int, RunConfig, float, float] | None = None
        self.refresh()

    def refresh(self) -> None:
        end = min(self._hold or self._steps.steps, self._next + AT_ONCE, self._steps.steps)
        while self._next < end:
            self._step()
        if self._next == self._hold:
            if not self._waited:
                self._validate()
            self._waited += 1
            self._hold *= self._waited < PATIENCE
        super().refresh()

    def finish(self) -> None:
        """All the steps that are left, and the end."""
        self._hold = 0
        while self._next < self._steps.steps:
            self._step()
        self._written.end()

    def turn(self, values: dict[str, Any], by: str, command: str = SET, steps: int = 0) -> ChangeResult:
        before, ran = self._steps, self._next
        if command == BACK:
            assert self._copy is not None
            first, config, learned, began = self._copy
            for writer in self._written.ranks:
                writer.undo(first, end=ran, seconds=before.clock - began, by=by)
            before.turn(config)
            before.learned, self._next = learned, first
            self._copy = (first, config, learned, before.clock)
        elif command == TRY:
            self._copy = (ran, before.config, before.learned, before.clock)
            self._validate()
        self._hold, self._waited = self._next + steps if steps else 0, 0
        return ChangeResult(self._next, self._change(values, by) or command != SET)

    def _change(self, values: dict[str, Any], by: str) -> bool:
        config = live_changes.change_config(self._steps.config, values)
        changes = live_changes.changes(self._steps.config, config)
        for one in changes:
            about = {"key": one.key, "old": one.old, "new": one.new, "by": by}
            self._written.ranks[0].event(live_changes.EVENT, step=self._next, **about)
        self._steps.turn(config)
        run_folder.change_config(self.folder, config)
        if changes:
            self._steps.first_measured = self._next + config.train.warmup
        return bool(changes)

    def _step(self) -> None:
        self._written.write_step(self._next)
        self._steps.learn()
        self._steps.clock += self._steps.step_seconds
        self._next += 1

    def _validate(self) -> None:
        self._written.ranks[1].event("validation", step=self._next, loss=self._steps.loss, batches=1, ranks=1)


class PlayedStarter(Starter):
    """Starts a played run where a process would be started."""

    def __init__(self, home: Path, folder: Path, name: str, live: Any, run: str, started_unix: float) -> None:
        super().__init__(home, folder, name, live)
        self._id, self._began = run, started_unix

    def _start_run(self, before: OngoingRun | None, config: RunConfig) -> OngoingRun:
        config = config.with_values({"train.steps": self._live.steps})
        steps = PlayedSteps(self._id, {}, STEP_SECONDS, self._live.steps, started_unix=self._began)
        steps.begin(config)
        written = RunFolder(self._home, steps)
        run_folder.update_status(written.folder, labels={"live": self._name, "purpose": "train"})
        note_run(self._folder, self._id)
        return PlayedRun(written, steps)
