"""The made-up machine with records: steps arrive one by one while somebody may end the run. No real time passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import EarlyEnd, Ending, RunOutcome
from profilers.analysis.statistics import mean_interval
from profilers.model.run_summary import RunSummary
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.support.studies.fake import Machine, Should

#: Steps that a run does after it was asked to end.
LATE = 2


@dataclass
class Recording(Machine):
    """Writes what its ranks would; ``steps_done`` counts all steps of all runs."""

    home: Path = field(default_factory=Path)
    steps_done: int = 0

    def __call__(
        self,
        config: RunConfig,
        labels: dict[str, str],
        should_stop: Should,
        on_start: Callable[[Path], None] | None = None,
        /,
    ) -> tuple[RunOutcome, RunSummary]:
        number = len(self.configs)
        self.configs.append(config)
        self.labels.append(labels)
        run = self.home / f"run-{number}"
        (run / run_folder.RECORDS).mkdir(parents=True)
        if on_start:
            on_start(run)
        whole = self._summary(run.name, config, RunOutcome(Ending.COMPLETED), number)
        seconds = [1.5 * whole.step_samples[0]] * config.train.warmup + whole.step_samples
        done, early = self._steps(run, seconds, config.train.warmup, should_stop)
        self.steps_done += done
        outcome = RunOutcome(early.ending, early.reason) if early else RunOutcome(Ending.COMPLETED)
        return outcome, _cut(whole, seconds[config.train.warmup : done], done)

    def _steps(
        self, run: Path, seconds: list[float], warmup: int, should_stop: Should
    ) -> tuple[int, EarlyEnd | None]:
        writers = [RecordWriter(run / run_folder.RECORDS, f"rank-{rank}") for rank in range(4)]
        end, early = len(seconds), None
        for step, took in enumerate(seconds):
            answer = None if early else should_stop()
            if isinstance(answer, EarlyEnd) and step + LATE < end:
                end, early = step + LATE, answer
            if step >= end:
                break
            for rank, writer in enumerate(writers):
                writer.write(step_sample(step, measured=step >= warmup, forward=took * (1 - 0.01 * rank)))
        for writer in writers:
            writer.close()
        return end, early


def _cut(whole: RunSummary, seconds: list[float], done: int) -> RunSummary:
    found = mean_interval(seconds)
    assert found.low
    assert found.high
    tokens = whole.tokens_per_step
    bounds = type(whole.tokens_per_second_interval)(tokens / found.high, tokens / found.low)  # type: ignore[misc,arg-type,call-arg]
    return replace(
        whole,
        step_samples=list(np.asarray(seconds, float)),
        tokens_per_second=tokens / found.value,
        tokens_per_second_interval=bounds,
        losses=whole.losses[:done],
        measured_steps=len(seconds),
    )
