"""How predictions of this machine held: finished runs beside what was predicted of them without their help. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.sections import KnobValues
from engine.run.calibration.fingerprint import Fingerprint
from tuning.predict import correction
from tuning.predict.fit.finished_runs import FinishedRun
from tuning.predict.forecast import forecasts
from tuning.predict.forecast_document import Forecast
from tuning.predict.target import Target


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Runs of one configuration that finished on this machine, and what was predicted of it without their help.

    ``ratio`` is measured over predicted; ``inside`` whether the mean lies in the range.
    """

    runs: list[str]
    layout: dict[str, int]
    values: KnobValues
    measured_seconds: float
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    ratio: float
    inside: bool


@dataclass(frozen=True, slots=True)
class Record:
    """How predictions of this machine held, newest run first; ``reason`` where there is nothing to compare."""

    rows: list[PredictionCheck]
    left_out: int = 0
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def record_of(runs: Sequence[FinishedRun], target: Target, machine: Fingerprint) -> Record:
    """Of the finished runs that count, as ``learn`` judges it; ``target`` is this machine by its calibration alone."""
    counted = correction.select_runs(runs, target, machine)
    groups = [
        group for group in counted.groups if layout_of(group[0].trial.config).world_size <= _most(target)
    ]
    if not groups:
        return Record([], len(counted.left_out), "no run of this home that ran to its end can be predicted")
    predicted = [
        forecasts([group[0].trial.config], target.adapt_to_config(group[0].trial.config))[0]
        for group in groups
    ]
    rows = [
        _compare_runs([run.id for run in group], [run.trial.seconds for run in group], forecast)
        for group, forecast in zip(groups, predicted, strict=True)
    ]
    return Record(sorted(rows, key=lambda row: max(row.runs), reverse=True), len(counted.left_out))


def _most(target: Target) -> int:
    return max(target.cluster.size, target.sharing.most if target.sharing else 0)


def _compare_runs(runs: list[str], seconds: list[float], forecast: Forecast) -> PredictionCheck:
    measured, predicted = sum(seconds) / len(seconds), forecast.step_seconds
    config = forecast.config
    return PredictionCheck(
        runs=sorted(runs, reverse=True),
        layout=layout_of(config).as_dict(),
        values=plan_values(config),
        measured_seconds=measured,
        predicted_seconds=predicted.median,
        low_seconds=predicted.low,
        high_seconds=predicted.high,
        ratio=measured / predicted.median,
        inside=predicted.low <= measured <= predicted.high,
    )


def plan_values(config: RunConfig) -> KnobValues:
    """What a plan turns beside the degrees, and what it is asked for: a layout that ran is found again by these."""
    return {
        "model.preset": config.model.preset,
        "batch.global_batch": config.batch.global_batch,
        "batch.micro_batch": config.batch.micro_batch,
        "data.sequence_length": config.data.sequence_length,
        "precision": config.precision,
        "schedule.kind": config.schedule.kind,
        "schedule.chunks": config.schedule.chunks,
        "memory.recompute": config.memory.recompute,
    }


def find_measured_runs(record: Record, forecast: Forecast) -> PredictionCheck | None:
    """The runs that had the configuration of a planned layout; None if there are none."""
    layout, values = layout_of(forecast.config).as_dict(), plan_values(forecast.config)
    same: Mapping[str, Any] = {"layout": layout, "values": values}
    return next((row for row in record.rows if {"layout": row.layout, "values": row.values} == same), None)
