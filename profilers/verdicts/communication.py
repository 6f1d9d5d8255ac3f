"""Rules about communication that ranks waited for, and which setting to change. What ran beside computation is never
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profilers.model.run_summary import CommunicationRow
from profilers.model.verdict import Gain, Verdict
from profilers.records.operations import operation_of
from profilers.verdicts.evidence import Observed, percent, rate, seconds, size
from profilers.verdicts.exposure import POINT_TO_POINT, UNKNOWN, Exposure

#: (operation, first letters of the axis) -> what to turn; the first that fits. Empty letters fit any axis.
_ADVICE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "all_reduce",
        "dp",
        (
            "send less with compression.method, hide more with overlap.bucket_mb, or reduce less often with a larger "
            "batch.global_batch",
            *("compression.method", "overlap.bucket_mb", "batch.global_batch"),
        ),
    ),
    ("all_reduce", "tp", ("a smaller parallel.tp, inside one host", "parallel.tp")),
    (
        "all_gather",
        "dp",
        (
            "gather less often with a smaller parallel.zero_stage, fewer bytes with compression.weights, or beside "
            "computation with overlap.prefetch (zero_stage 2, 3) or overlap.gather_with_optimizer (1)",
            *(
                "parallel.zero_stage",
                "compression.weights",
                "overlap.prefetch",
                "overlap.gather_with_optimizer",
            ),
        ),
    ),
    (
        "all_gather",
        "tp",
        (
            "keep what was gathered with parallel.tp_regather=false, gather beside products with overlap.tp_chunks, or "
            "a smaller parallel.tp",
            *("parallel.tp_regather", "overlap.tp_chunks", "parallel.tp"),
        ),
    ),
    (
        "reduce_scatter",
        "dp",
        (
            "send less with compression.method, scatter once a step with parallel.reduce_every_micro_batch=false, or "
            "among fewer ranks with parallel.shard_ranks",
            *("compression.method", "parallel.reduce_every_micro_batch", "parallel.shard_ranks"),
        ),
    ),
    (
        "reduce_scatter",
        "tp",
        (
            "scatter beside products with overlap.tp_chunks, or a smaller parallel.tp, inside one host",
            *("overlap.tp_chunks", "parallel.tp"),
        ),
    ),
    (
        "all_to_all",
        "cp",
        ("parallel.cp_method=ring, or a smaller parallel.cp", "parallel.cp_method", "parallel.cp"),
    ),
    (
        "all_to_all",
        "",
        (
            "fewer bytes with compression.experts, fewer tokens with model.capacity_factor or "
            "model.experts_per_token, or a smaller parallel.ep",
            *("compression.experts", "model.capacity_factor", "model.experts_per_token", "parallel.ep"),
        ),
    ),
    (
        POINT_TO_POINT,
        "pp",
        (
            "fewer borders between stages with a smaller schedule.chunks or parallel.pp",
            *("schedule.chunks", "parallel.pp"),
        ),
    ),
    (
        POINT_TO_POINT,
        "cp",
        ("parallel.cp_method=ulysses, or a smaller parallel.cp", "parallel.cp_method", "parallel.cp"),
    ),
    (
        UNKNOWN,
        "",
        ("record what it is with profile.collectives=true", "profile.collectives"),
    ),
)
_ANY_ADVICE = (
    "a layout with less traffic: a smaller parallel.tp or parallel.zero_stage",
    *("parallel.tp", "parallel.zero_stage"),
)


def advice(operation: str, axis: str) -> tuple[str, ...]:
    """A sentence, and the keys of the configuration that it names."""
    fitting = (
        found
        for named, letters, found in _ADVICE
        if named == operation and axis.removeprefix("e").startswith(letters)
    )
    return next(fitting, _ANY_ADVICE)


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
    known = operation_of(exposure.operation)
    has_verdict = exposure.operation == POINT_TO_POINT or (known is not None and known.has_verdict)
    named = exposure.operation if has_verdict else UNKNOWN
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
