"""What the machine was like during a run, and where two arms of a comparison had different conditions. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profilers.analysis.machine import CHOSEN
from profilers.model.run_summary import RunSummary

Conditions = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """A reading that should be alike: what it is called, and from which difference on it is told; of a ``relative``
    one that is a share of the larger reading.
    """

    name: str
    threshold: float
    relative: bool
    unit: str
    scale: float = 1.0


RULES = {
    "sm_clock_mhz": Rule("GPU clocks", 0.02, True, "MHz"),
    "gpu_celsius": Rule("GPU temperatures", 8.0, False, "°C"),
    "throttled_share": Rule("the time for which GPU clocks were throttled", 0.1, False, "%", 100.0),
    "processor_mhz": Rule("processor clocks", 0.03, True, "MHz"),
    "beside": Rule("the number of trials beside them", 0.5, False, "trials"),
    "others_share": Rule("the share of the processors that others took", 0.05, False, "%", 100.0),
}


def run_conditions(summary: RunSummary, processors: int | None = None) -> dict[str, float]:
    """The readings of a run that are known; GPUs count where ranks compute on them.

    What others took is what was busy without the ranks' own processor time, of a host that holds all ranks; a
    hypervisor that gives time to others (steal) counts as busy, too.
    """
    readings: dict[str, float | None] = _of_gpus(summary)
    cores = processors or os.cpu_count() or 0
    if (
        len(summary.hosts) == 1
        and summary.step_seconds
        and summary.cpu_seconds_per_step is not None
        and cores
    ):
        step = summary.step_seconds.mean or summary.step_seconds.median
        busy = summary.hosts[0].cpu_fraction
        cores_used = summary.cpu_seconds_per_step / (step * cores)
        readings["others_share"] = None if busy is None else max(0.0, busy - cores_used)
    return {name: float(value) for name, value in readings.items() if value is not None}


def _of_gpus(summary: RunSummary) -> dict[str, float | None]:
    used = [row for row in summary.gpus if row.ranks is None or row.ranks]
    clocks = [row.sm_clock_mhz for row in used if row.sm_clock_mhz is not None]
    heat = [row.max_temperature_celsius for row in used if row.max_temperature_celsius is not None]
    throttled = [max((share for why, share in row.throttled.items() if why not in CHOSEN), default=0.0)
            for row in used if row.samples]  # fmt: skip
    return {
        "sm_clock_mhz": sum(clocks) / len(clocks) if clocks else None,
        "gpu_celsius": max(heat, default=None),
        "throttled_share": max(throttled, default=None),
    }


def differences(
    first: Sequence[Conditions], second: Sequence[Conditions], names: tuple[str, str]
) -> list[str]:
    """One line for each reading in which the runs of two arms differ by more than is good for comparing them."""
    lines = []
    for key, rule in RULES.items():
        means = [_mean(arm, key) for arm in (first, second)]
        first_mean, second_mean = means
        if first_mean is None or second_mean is None:
            continue
        apart = abs(first_mean - second_mean) / (max(first_mean, second_mean, 1e-9) if rule.relative else 1.0)
        if apart > rule.threshold:
            lines.append(_line(rule, apart, (first_mean, second_mean), names))
    return lines


def _mean(arm: Sequence[Conditions], key: str) -> float | None:
    values = [run[key] for run in arm if key in run]
    return sum(values) / len(values) if values else None


def _line(rule: Rule, apart: float, means: tuple[float, float], names: tuple[str, str]) -> str:
    size = f"{100 * apart:.0f} %" if rule.relative else f"{rule.scale * apart:.0f} {rule.unit}"
    first, second = (f"{rule.scale * mean:,.0f} {rule.unit}" for mean in means)
    return f"{rule.name} differed by {size} ({first} in {names[0]}, {second} in {names[1]}): measure again"
