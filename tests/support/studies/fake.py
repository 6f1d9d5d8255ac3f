"""A made-up machine: ``execute`` without ranks, with noise, failures, and places where it can be stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from engine.run.outcome import Ending, RunOutcome
from profilers.analysis.statistics import mean_interval
from profilers.model.run_summary import RunSummary
from tuning import study as studies
from tuning.spec.study_file import StudyFile, parse

STEPS = 24
#: How long a run waits for a command to be heard, at most.
PATIENCE_SECONDS = 20.0
Should = Callable[[], bool]


def study(**changes: Any) -> StudyFile:
    """A small study of four ranks."""
    tree: dict[str, Any] = {
        "name": "first",
        "ranks": 4,
        "trials": 6,
        "base": {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": STEPS, "warmup": 4}},
        "space": {
            "parallel.tp": [1, 2, 4],
            "parallel.pp": [1, 2, 4],
            "parallel.zero_stage": [0, 3],
            "batch.micro_batch": [1, 2, 4],
            "memory.recompute": ["none", "full"],
        },
    }
    return parse(tree | changes)


def run_study(*given: Any, **more: Any) -> dict[str, Any]:
    """:func:`tuning.study.run_study`; the document that ``tune --json`` prints of it."""
    return studies.run_study(*given, **more).as_dict()


def seconds(config: RunConfig) -> float:
    """A cost model with one clear winner: dp=2 tp=1 pp=2 with a large micro-batch."""
    parallel, cost = config.parallel, 0.2
    cost *= {(4, 1, 1): 1.0, (2, 1, 2): 0.7, (2, 2, 1): 1.1}.get((parallel.dp, parallel.tp, parallel.pp), 1.3)
    cost *= 1 + 0.2 / config.batch.micro_batch
    cost *= 1.2 if config.memory.recompute == "full" else 1.0
    cost *= 1.1 if parallel.zero_stage == 3 else 1.0
    return cost * {"none": 1.0, "fp16": 0.8, "topk": 0.5}.get(config.compression.method, 0.9)


def curve(config: RunConfig, step_seconds: float, last: float) -> list[dict[str, Any]]:
    """Held-out losses that fall evenly from 4 to the last one."""
    every, steps = config.train.validate_every or config.train.steps, config.train.steps
    taken = sorted({*range(every, steps, every), steps})
    return [
        {"step": step, "loss": 4 + (last - 4) * step / steps, "seconds": step_seconds * step}
        for step in taken
    ]


@dataclass
class Machine:
    """Counts what it is asked to run; ``endings`` says how the n-th execution ends."""

    noise: float = 0.01
    run_noise: float = 0.0
    endings: dict[int, RunOutcome] = field(default_factory=dict)
    by_config: Callable[[RunConfig], RunOutcome | None] = lambda _: None
    losses: Callable[[RunConfig], float] = lambda _: 2.4
    during: Callable[[int, Path | None], None] = lambda number, run: None
    run_seconds: float = 0.0
    #: A run goes on until this, too, for some seconds: a busy machine may be late to hear a command.
    heard: Callable[[], bool] = lambda: True
    configs: list[RunConfig] = field(default_factory=list)
    labels: list[dict[str, str]] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def __call__(
        self,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: Should,
        on_start: Callable[[Path], None] | None = None,
        /,
    ) -> tuple[RunOutcome, RunSummary]:
        self.begins.append(time.monotonic())
        assert next(problems(config), None) is None, "an illegal configuration reached the machine"
        number = len(self.configs)
        self.configs.append(config)
        self.labels.append(labels)
        run = Path(f"run-{number}-{time.time_ns()}")
        if on_start:
            on_start(run)
        self.during(number, run)
        outcome = self._outcome(number, config, should_stop)
        summary = self._summary(run.name, config, outcome, number)
        self.ends.append(time.monotonic())
        return outcome, summary

    def _outcome(self, number: int, config: RunConfig, should_stop: Should) -> RunOutcome:
        deadline = time.monotonic() + self.run_seconds
        while True:
            if should_stop():
                return RunOutcome(Ending.STOPPED)
            late = time.monotonic() - deadline
            if late >= 0 and (self.heard() or late > PATIENCE_SECONDS):
                break
            time.sleep(0.005)
        return self.endings.get(number) or self.by_config(config) or RunOutcome(Ending.COMPLETED)

    def _summary(self, run: str, config: RunConfig, outcome: RunOutcome, number: int) -> RunSummary:
        random = np.random.default_rng([number, 7])
        steps = config.train.steps - config.train.warmup
        base = seconds(config) * math.exp(random.normal() * self.run_noise)
        samples = [float(base * (1 + random.normal() * self.noise)) for _ in range(steps)]
        tokens, known = config.batch.global_batch * config.data.sequence_length, {}
        if outcome.good:
            found = mean_interval(samples)
            assert found.low and found.high
            bounds = {"low": tokens / found.high, "high": tokens / found.low}
            known = {"tokens_per_second": tokens / found.value, "tokens_per_second_interval": bounds,
                     "step_samples": samples, "validation_loss": self.losses(config),
                     "quality": curve(config, base, self.losses(config))}  # fmt: skip
        layout = {"dp": config.parallel.dp, "tp": config.parallel.tp, "pp": config.parallel.pp}
        tree = {"id": run, "layout": layout, "world_size": 4, "backend": "gloo", "parameters": 1,
                "tokens_per_step": tokens, "losses": [2.5] * config.train.steps, "measured_steps": steps}  # fmt: skip
        return RunSummary.from_dict(tree | known)
