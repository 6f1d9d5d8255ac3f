"""A run's length by a clock that the test turns: steps, losses and saves take what it says, and nothing else."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.rank import loop
from engine.rank.loop import RunLength
from engine.run.commands import StopControl
from engine.run.progress import Progress
from tests.support.runs import small


class Clock:
    """Stands where ``loop`` has ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class MadeUpRun:
    """The order of ``loop._train_steps``: lengths, steps, saves and losses, then the last of both; first a loss."""

    def __init__(self, config: RunConfig, folder: Path, clock: Clock) -> None:
        self.rank = SimpleNamespace(
            config=config,
            step_config=config,
            rank=0,
            sequences=0,
            folder=folder,
            control=StopControl(Progress(folder, 1), 0),
            writer=SimpleNamespace(event=lambda *_, **__: None),
        )
        self.clock, self.began = clock, clock.now
        self.length = RunLength(self.rank, clock.now)  # type: ignore[arg-type]

    def go(self, step_seconds: list[float], loss: float, save: float) -> float:
        """How long it takes; steps take the given seconds in turn."""
        self.length.begin(0)
        self.clock.now += loss
        step, saved, every = 0, None, self.rank.config.checkpoint.every_steps
        while True:
            self.length.begin_step(step, loss, saved)
            if step >= self.rank.config.train.steps:
                break
            self.clock.now += step_seconds[step % len(step_seconds)]
            self.rank.sequences += self.rank.config.batch.global_batch
            step += 1
            with self.length.exclude_time():
                if every is not None and step % every == 0:
                    self.clock.now += save
                    saved = save
                losses = self.rank.config.train.validate_every
                if losses is not None and step % losses == 0 and step < self.rank.config.train.steps:
                    self.clock.now += loss
        if every is not None and step % every:
            self.clock.now += save
        self.clock.now += loss
        return self.clock.now - self.began


def settings(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    step = 10 ** draw.uniform(-2, -0.5)
    return {
        "step": step,
        "seconds": step * draw.uniform(30, 800),
        "loss": step * draw.choice([0.0, 0.7, 8.0]),
        "save": step * draw.choice([0.5, 3.0]),
        "validate": draw.choice([None, 7, 20]),
        "checkpoint": draw.choice([None, 11, 20]),
    }


def seconds_of(steps: int, drawn: dict[str, Any]) -> float:
    """Of a run of so many steps, with its first loss and all that is due."""
    losses = 2 + (0 if drawn["validate"] is None else (steps - 1) // drawn["validate"])
    saves = 0 if drawn["checkpoint"] is None else math.ceil(steps / drawn["checkpoint"])
    return float(steps * drawn["step"] + losses * drawn["loss"] + saves * drawn["save"])


@pytest.mark.parametrize("seed", range(200))
def test_it_ends_within_a_step_of_its_time_where_steps_take_what_they_took(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, clock = settings(seed), Clock()
    monkeypatch.setattr(loop, "time", clock)
    values = {"train.seconds": drawn["seconds"], "train.validate_every": drawn["validate"]}
    config = small().with_values(values | {"checkpoint.every_steps": drawn["checkpoint"]})
    took = MadeUpRun(config, tmp_path, clock).go([drawn["step"]], drawn["loss"], drawn["save"])
    early = drawn["seconds"] - took
    if early > drawn["step"]:  # the one step more would have come with a save or a loss that takes longer
        steps = config_steps(took, drawn)
        assert seconds_of(steps + 1, drawn) - drawn["seconds"] > min(early, drawn["step"]), drawn
    else:
        assert early >= -drawn["step"] - 1e-6, drawn


def config_steps(took: float, drawn: dict[str, Any]) -> int:
    """The steps of a run that took so long."""
    return min(range(1, 1000), key=lambda steps: abs(seconds_of(steps, drawn) - took))
