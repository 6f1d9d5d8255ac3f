"""Rules about communication that ranks stood waiting for; what ran beside computation is never counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profilers.diagnosis.verdict import Gain, Verdict
from profilers.findings.exposed_advice import advice
from profilers.findings.exposure import POINT_TO_POINT, UNKNOWN, Exposure
from profilers.findings.observed import Observed
from profilers.findings.units import percent, rate, seconds, size
from profilers.run_summary import CommunicationRow

_NAMED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", POINT_TO_POINT)
#: Less is not worth a line.
_LEAST_SHARE = 0.001
_MEMBERS = {POINT_TO_POINT: ("send", "recv")}


def exposed_findings(seen: Observed, rows: Sequence[CommunicationRow]) -> Iterator[Verdict]:
    """One for each operation and axis that anybody waited for; ``rows`` are what a run's summary says of them."""
    for exposure in seen.exposures:
        if exposure.seconds > _LEAST_SHARE * seen.step_seconds:
            yield exposed_finding(seen, rows, exposure)


def exposed_finding(
    seen: Observed, rows: Sequence[CommunicationRow], exposure: Exposure, more: str = ""
) -> Verdict:
    """``more`` is added to the evidence."""
    share = exposure.seconds / seen.step_seconds
    calls = _calls(rows, exposure)
    knob, *knobs = advice(exposure.operation, exposure.axis)
    named = exposure.operation if exposure.operation in _NAMED else UNKNOWN
    fastest = max(calls, key=lambda row: row.bytes, default=None)
    return Verdict(
        name=f"exposed_{named}",
        evidence=_evidence(exposure, share, calls, fastest) + more,
        threshold=None,
        knob=knob,
        threshold_name="exposed",
        share=share,
        seconds=exposure.seconds,
        axis=exposure.axis or None,
        operation=None if exposure.operation == UNKNOWN else exposure.operation,
        bytes=sum(row.bytes for row in calls) if calls else None,
        bus_bandwidth=fastest.bus_bandwidth if fastest else None,
        peak_fraction=fastest.peak_fraction if fastest else None,
        knobs=knobs,
        gain=Gain(share, "exposed seconds / step, if all of it ran beside computation"),
    )


def _calls(rows: Sequence[CommunicationRow], exposure: Exposure) -> list[CommunicationRow]:
    members = _MEMBERS.get(exposure.operation, (exposure.operation,))
    return [row for row in rows if row.axis == exposure.axis and row.operation in members]


def _evidence(
    exposure: Exposure, share: float, calls: list[CommunicationRow], largest: CommunicationRow | None
) -> str:
    what = exposure.operation.replace("_", "-")
    axis = f" over {exposure.axis}" if exposure.axis else " that no recorded call explains"
    text = f"ranks stand {seconds(exposure.seconds)} of a step ({percent(share)}) waiting for {what}{axis}"
    if calls:
        count = sum(row.calls for row in calls)
        text += f": {count:g} call{'' if count == 1 else 's'} with {size(sum(row.bytes for row in calls))}"
    if largest is not None and largest.bus_bandwidth is not None:
        text += f" at {rate(largest.bus_bandwidth)}"
    if largest is not None and largest.peak_fraction is not None:
        text += f", {percent(largest.peak_fraction)} of the measured peak"
    if exposure.late_seconds > 0.01 * exposure.seconds:
        text += f"; {seconds(exposure.late_seconds)} more of waiting is for ranks that come late"
    return text
