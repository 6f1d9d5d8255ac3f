"""The rule about communication that ranks waited for; what ran beside computation is never counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profilers.model.run_summary import CommunicationRow
from profilers.model.verdict import Gain, Verdict, find_keys
from profilers.records import operations
from profilers.verdicts.evidence import UNKNOWN, Exposure, RuleInputs, percent, rate, seconds, size

_ANY_ADVICE = "a layout with less traffic: a smaller parallel.tp or parallel.zero_stage"
_UNKNOWN_ADVICE = "record the calls with profile.collectives=true"
#: Less is not worth a line.
_LEAST_SHARE = 0.001


def advice(operation: str, axis: str) -> str:
    """What to change about waiting for an operation, or for those that share a verdict of that name, on an axis.

    An axis of experts (``edp``) is taken for the axis that it is a part of.
    """
    if operation == UNKNOWN:
        return _UNKNOWN_ADVICE
    fitting = (
        text
        for entry in operations.OPERATIONS
        if operation in (entry.name, entry.verdict)
        for letters, text in entry.advice.items()
        if axis.removeprefix("e").startswith(letters)
    )
    return next(fitting, _ANY_ADVICE)


def exposed_findings(inputs: RuleInputs, rows: Sequence[CommunicationRow]) -> Iterator[Verdict]:
    """One for each operation and axis that any rank waited for; ``rows`` are what a run's summary says of them."""
    for exposure in inputs.exposures:
        if exposure.seconds > _LEAST_SHARE * inputs.step_seconds:
            yield exposed_finding(inputs, rows, exposure)


def exposed_finding(
    inputs: RuleInputs, rows: Sequence[CommunicationRow], exposure: Exposure, extra_evidence: str = ""
) -> Verdict:
    """The finding about one exposure; ``extra_evidence`` is added to its own."""
    share = exposure.seconds / inputs.step_seconds
    members = [
        operation
        for operation in operations.OPERATIONS
        if exposure.operation in (operation.name, operation.verdict)
    ]
    names = {exposure.operation, *(operation.name for operation in members)}
    calls = [row for row in rows if row.axis == exposure.axis and row.operation in names]
    largest = max(calls, key=lambda row: row.bytes, default=None)
    has_verdict = any(operation.verdict == exposure.operation for operation in members)
    remedy = advice(exposure.operation, exposure.axis)
    if not inputs.setting.has_capacities:
        remedy = remedy.replace("model.capacity_factor or ", "")
    return Verdict(
        name=f"exposed_{exposure.operation if has_verdict else UNKNOWN}",
        evidence=_evidence(exposure, share, calls, largest) + extra_evidence,
        threshold=None,
        advice=remedy,
        threshold_name="exposed",
        share=share,
        seconds=exposure.seconds,
        axis=exposure.axis or None,
        operation=None if exposure.operation == UNKNOWN else exposure.operation,
        bytes=sum(row.bytes for row in calls) if calls else None,
        bus_bandwidth=largest.bus_bandwidth if largest else None,
        peak_fraction=largest.peak_fraction if largest else None,
        knobs=find_keys(remedy),
        gain=Gain(share, "exposed seconds / step, if all of it ran beside computation"),
    )


def _evidence(
    exposure: Exposure, share: float, calls: list[CommunicationRow], largest: CommunicationRow | None
) -> str:
    name = exposure.operation.replace("_", "-")
    axis = f" over {exposure.axis}" if exposure.axis else " that no recorded call explains"
    text = f"ranks wait {seconds(exposure.seconds)} of a mean step ({percent(share)}) for {name}{axis}"
    if calls:
        count = sum(row.calls for row in calls)
        text += f": {count:g} call{'' if count == 1 else 's'} with {size(sum(row.bytes for row in calls))}"
    if largest is not None and largest.bus_bandwidth is not None:
        text += f" at {rate(largest.bus_bandwidth)}"
    if largest is not None and largest.peak_fraction is not None:
        text += f", {percent(largest.peak_fraction)} of the measured peak"
    if exposure.late_seconds > 0.01 * exposure.seconds:
        text += f"; another {seconds(exposure.late_seconds)} are spent waiting for late ranks"
    return text
