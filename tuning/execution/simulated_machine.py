"""Trials that nobody runs: ``execute`` on a model of a cluster. Each leaves a run folder that is marked as simulated.

Seconds are those of the closed forms, bytes those that the engine's own formula counts and an allowance. What would
more likely than not run out of memory ends as that. Steps and runs stray as they are told to.
"""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from engine.config.errors import LayoutError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.lifecycle import finish, summary_of_refused
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from profilers.records.schema import PHASES, MemorySample, StepSample
from profilers.records.writer import RecordWriter
from tuning.execution.executor import OnStart, Ran, ShouldStop
from tuning.predict import target
from tuning.predict.forecast import forecasts
from tuning.predict.forecast_document import Forecast
from tuning.predict.simulation.run_folder import SIMULATED, note_start
from tuning.predict.target import Target

#: Terms of a breakdown by the phase of a step that they are; of the others a third is forward, the rest backward.
_AXES = {"tensor_parallel": "tp", "context_parallel": "cp", "data_parallel": "dp"}
_PHASE = dict.fromkeys(_AXES, "communication_exposed") | {
    "messages": "bubble",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "recomputation": "backward",
    "other": "other",
}
_FORWARD = 1 / 3
_GIB = 2**30


@dataclass
class Simulation:
    """Nodes of ``cluster``, as many as ranks fill. ``noise`` is the deviation of a step, as a share; of a run, half."""

    home: Path
    cluster: str
    noise: float = 0.0
    _targets: dict[int, Target] = field(default_factory=dict)

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        """One trial, in milliseconds.

        Raises:
            InputError: the cluster is not known or has no node of that size, or the home folder cannot be written.
        """
        try:
            ranks = rules.check(config).world_size
        except LayoutError as problem:
            return RunOutcome(Ending.ILLEGAL, str(problem)), summary_of_refused(config, SIMULATED)
        forecast = forecasts([config], self.target(ranks))[0]
        folder = run_folder.create(self.home, config, {**labels, SIMULATED: self.cluster})
        with run_folder.check_writable(self.home):
            note_start(folder, config, forecast.target.cluster)
            if on_start is not None:
                on_start(folder)
            outcome = _ending(forecast)
            with RecordWriter(folder / run_folder.RECORDS, "rank-0") as writer:
                self._write(writer, config, forecast, outcome.good)
        summary = finish(folder, config, SIMULATED, outcome)
        return outcome, _with_axes(folder, summary, forecast) if outcome.good else summary

    def target(self, ranks: int) -> Target:
        """The nodes that so many ranks fill.

        Raises:
            InputError: the cluster is not known, or has no such nodes.
        """
        if ranks not in self._targets:
            self._targets[ranks] = target.parse_target(self.cluster, None, ranks)
        return self._targets[ranks]

    def _write(self, writer: RecordWriter, config: RunConfig, forecast: Forecast, completed: bool) -> None:
        chip, began = forecast.target.group.accelerator, time.time()
        source = f"{chip.name}: {chip.sources.get('peak_flops', 'the catalogue of clusters')}"
        writer.event("environment", device=chip.name, host=forecast.target.cluster.name,
                     peak_flops=forecast.peak_flops, peak_source=source)  # fmt: skip
        writer.event("note", text=_note(forecast))
        if not completed:
            return
        tokens = config.batch.global_batch * config.data.sequence_length // layout_of(config).data
        for step, factor in enumerate(self._factors(config)):
            measured = step >= config.train.warmup
            writer.write(_sample(step, measured, began, forecast, factor, tokens))
            began += forecast.step_seconds.median * factor
        peak = round(forecast.memory_bytes.median)
        writer.write(MemorySample(0, began, 0, 0, peak, peak, None, "backward"))

    def _factors(self, config: RunConfig) -> list[float]:
        """How each step strays; a configuration that runs again strays in another way."""
        seed = zlib.crc32(config.dumps().encode())
        random = np.random.default_rng([seed, time.time_ns() % 2**32])
        run = self.noise / 2 * random.normal()
        return [math.exp(run + self.noise * random.normal()) for _ in range(config.train.steps)]


def _ending(forecast: Forecast) -> RunOutcome:
    if forecast.out_of_memory_probability <= 0.5:
        return RunOutcome(Ending.COMPLETED, f"simulated on a model of {forecast.target.cluster.name}")
    needs, has = forecast.memory_bytes.median / _GIB, forecast.target.memory_bytes / _GIB
    words = f"simulated: a rank needs {needs:.0f} GiB of {has:.0f} GiB"
    return RunOutcome(Ending.OOM, words, rank=0, phase="backward")


def _with_axes(folder: Path, summary: RunSummary, forecast: Forecast) -> RunSummary:
    """There are no records of collectives: who waits for which axis is known from the breakdown, bytes are not."""
    exposed = {axis: forecast.breakdown[term] for term, axis in _AXES.items() if forecast.breakdown[term] > 0}
    enriched = replace(summary, exposed_seconds_by_axis=exposed, wire_bytes_per_step=None)
    run_folder.write_json(folder / run_folder.SUMMARY, enriched.as_dict())
    return enriched


def _note(forecast: Forecast) -> str:
    low, high = forecast.step_seconds.low, forecast.step_seconds.high
    return (
        f"simulated: no rank ran. Times are closed forms of a model of {forecast.target.cluster.name}, "
        f"90 % between {low:.3g} and {high:.3g} s a step; memory is by formula; losses do not exist"
    )


def _sample(
    step: int, measured: bool, began: float, forecast: Forecast, factor: float, tokens: int
) -> StepSample:
    seconds = dict.fromkeys(PHASES, 0.0)
    for term, term_seconds in forecast.breakdown.items():
        phase = _PHASE.get(term)
        parts = {phase: 1.0} if phase else {"forward": _FORWARD, "backward": 1 - _FORWARD}
        for name, share in parts.items():
            seconds[name] += share * term_seconds * factor
    phases = {f"{name}_seconds": value for name, value in seconds.items()}
    counts = {"tokens": tokens, "loss": None, "gradient_norm": None}
    return StepSample(step, measured, began, sum(seconds.values()), 0.0, **phases, **counts)  # type: ignore[arg-type]
