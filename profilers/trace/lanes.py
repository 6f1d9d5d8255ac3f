"""Records of traced steps as lanes of a Chrome trace: what the main thread computed, and what was on the wire. Pure.

A lane is a list of spans in order that do not overlap: viewers leave out what does not nest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.trace.chrome import TraceArguments, TraceEvent

#: Phases in which the main thread computes; a wait inside one of them is a span of its own.
COMPUTATION = ("forward", "backward", "optimizer")


#: Streams of the kernels that stand for a host's computation and communication.
_COMPUTATION_STREAM, _COMMUNICATION_STREAM = 1, 2


class Span(NamedTuple):
    """Something that lasted; ``kind`` is step, phase, action or communication."""

    kind: str
    name: str
    start_unix: float
    seconds: float
    arguments: TraceArguments


def lanes(records: RunRecords, rank: int, steps: range) -> dict[str, list[Span]]:
    """The lanes of one rank by name."""
    named = {
        "steps": _spans(records.table(rank, "step"), steps, _step),
        "phases": _spans(records.table(rank, "span"), steps, _phase),
        "pipeline actions": _spans(records.table(rank, "action"), steps, _action),
    }
    calls = _spans(records.table(rank, "comm"), steps, _call)
    for axis in dict.fromkeys(call.arguments["axis"] for call in calls):
        for number, lane in enumerate(assign_lanes(call for call in calls if call.arguments["axis"] == axis)):
            named[f"communication {axis}" + (f" ({number + 1})" if number else "")] = lane
    return {name: spans for name, spans in named.items() if spans}


def assign_lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """As few lanes as it takes for spans that overlap."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start_unix):
        free = (lane for lane in lanes if lane[-1].start_unix + lane[-1].seconds <= span.start_unix)
        lane = next(free, None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return lanes


def lane_events(
    named: dict[str, list[Span]], rank: int, base_ns: int, used_numbers: Collection[int] = ()
) -> Iterator[TraceEvent]:
    """All lanes as threads of process ``rank``, above those of the profiler, whose numbers are ``used_numbers``.

    Perfetto sorts threads by number and asks for no other order; one with its process's number comes first.
    """
    free = (number for number in count(1) if number != rank and number not in used_numbers)
    for number, ((name, spans), thread_number) in enumerate(zip(named.items(), free, strict=False)):
        thread = {"pid": rank, "tid": thread_number}
        yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": number - 100}}
        for span, (ts, dur) in zip(spans, _microseconds(spans, base_ns), strict=True):
            event = {"ph": "X", "cat": span.kind, "name": span.name, "args": span.arguments}
            yield event | thread | {"ts": ts, "dur": dur}


def kernel_events(
    named: dict[str, list[Span]], rank: int, backend: str, base_ns: int
) -> Iterator[TraceEvent]:
    """Computation and communication as kernels, which is what Holistic Trace Analysis reads.

    It knows communication by names that begin with ``nccl`` and hold ``Kernel``; the rest of the name says what it is.
    """
    for name, spans in named.items():
        kind = name.partition(" ")[0]
        for span, (ts, dur) in zip(spans, _microseconds(spans, base_ns), strict=True):
            if kind == "communication":
                label, stream = f"ncclKernel stands for {backend} {span.name}", _COMMUNICATION_STREAM
            elif kind == "phases" and span.name in COMPUTATION:
                label, stream = f"{span.name} on the host", _COMPUTATION_STREAM
            else:
                continue
            args = {"stream": stream, "device": rank} | span.arguments
            event = {"ph": "X", "cat": "kernel", "name": label, "pid": rank, "tid": stream, "args": args}
            yield event | {"ts": ts, "dur": dur}


def _microseconds(spans: list[Span], base_ns: int) -> Iterator[tuple[float, float]]:
    """Begin and duration. A span ends where the next begins at the latest: unix times in a float are 0.2 us apart."""
    starts = [round(span.start_unix * 1e9) - base_ns for span in spans]
    for span, start, following in zip(spans, starts, [*starts[1:], None], strict=True):
        end = start + round(span.seconds * 1e9)
        end = end if following is None else min(end, following)
        yield start / 1e3, max(0, end - start) / 1e3


def _spans(table: Table, steps: range, describe: Any) -> list[Span]:
    if not len(table):
        return []
    numbers = table.column("step").filled(-1)
    first, last = int(numbers.searchsorted(steps.start)), int(numbers.searchsorted(steps.stop))
    spans = [describe(row) for row in table.part(first, last).rows() if row.step in steps]  # type: ignore[union-attr]
    return sorted((span for span in spans if span is not None), key=lambda span: span.start_unix)


def _step(row: Any) -> Span:
    arguments = {"measured": row.measured, "tokens": row.tokens, "loss": row.loss}
    return Span("step", f"step {row.step}", row.start_unix, row.step_seconds, arguments)


def _phase(row: Any) -> Span:
    return Span("phase", row.phase, row.start_unix, row.seconds, {"step": row.step})


def _action(row: Any) -> Span:
    arguments = {"step": row.step, "stage": row.stage, "micro_batch": row.micro_batch}
    name = f"{row.work} stage {row.stage} micro-batch {row.micro_batch}"
    return Span("action", name, row.start_unix, row.seconds, arguments)


def _call(row: Any) -> Span | None:
    if row.seconds is None:
        return None
    arguments = {
        "step": row.step,
        "axis": row.axis,
        "bytes": row.bytes,
        "dtype": row.dtype,
        "ranks": row.group_size,
        "exposed_us": None if row.exposed_seconds is None else row.exposed_seconds * 1e6,
        "algorithm": row.algorithm,
    }
    return Span("communication", f"{row.operation} {row.axis}", row.start_unix, row.seconds, arguments)
