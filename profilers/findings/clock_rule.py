"""The rule about GPUs whose clock is held down: how much of the time, why, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from profilers import throttle
from profilers.diagnosis.verdict import Gain, Verdict
from profilers.findings.observed import WORK, Observed
from profilers.findings.units import percent, seconds
from profilers.rank_gpus import GpuReadings

#: Where a driver gives no reasons: a clock below this part of the highest one, while there was work, is held down.
_CLOCK_FRACTION, _BUSY_FRACTION = 0.95, 0.5


def clock_findings(seen: Observed, gpus: Sequence[GpuReadings]) -> Iterator[Verdict]:
    """The GPU whose clock was held down most, of those that ranks compute on."""
    found = [_clock(seen, one) for one in gpus]
    known = [one for one in found if one is not None]
    if known:
        yield max(known, key=lambda one: one.share or 0.0)


def _clock(seen: Observed, one: GpuReadings) -> Verdict | None:
    columns, inside = ("throttle_reasons", "sm_clock_mhz", "utilization_fraction"), one.within(*seen.span)
    masks, clocks, load = (one.table.column(name)[inside] for name in columns)
    highest = one.table.column("sm_clock_max_mhz")[one.own]
    rank = one.ranks[0]
    top = float(highest.max()) if highest.count() else None
    if not masks.count() and (top is None or not clocks.count()):
        return None
    told = np.array([bool(throttle.slows(int(mask))) for mask in masks.filled(0)], dtype=bool)
    below = (clocks < _CLOCK_FRACTION * (top or 0.0)).filled(False) & (load > _BUSY_FRACTION).filled(False)
    capped = told | (np.ma.getmaskarray(masks) & below)
    share = float(capped.mean())
    held = clocks[capped]
    part = float(held.mean()) / top if top and held.count() else 1.0
    reasons = sorted({reason for mask in masks[capped].compressed() for reason in throttle.slows(int(mask))})
    lost = share * max(0.0, 1 - part) * float(seen.typical(*WORK).mean())
    why = f" ({', '.join(reasons)})" if reasons else ""
    at = f", at {percent(part)} of the highest clock" if share else ""
    return Verdict(
        name="clock_cap",
        evidence=f"the clock of GPU {one.gpu}, of {seen.place(rank)}, is held down {percent(share)} of the time"
        f"{why}{at}; that costs up to {seconds(lost)} a step",
        threshold=None,
        knob="raise the power limit or cool the GPU; less work per token with precision=bf16",
        threshold_name="clock",
        share=share,
        seconds=lost,
        rank=rank,
        host=seen.hosts.get(rank),
        knobs=["precision"],
        gain=Gain(
            lost / seen.step_seconds, "share of time x (1 - clock / highest clock) x computation / step"
        ),
    )
