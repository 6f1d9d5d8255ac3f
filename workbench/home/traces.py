"""The traces of all ranks as one Chrome trace with lanes for each rank on one time axis, and as one for each rank.

The traces of a run: ordered, being recorded, or recorded; and their merging into one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config.errors import WorkbenchError
from engine.config.layout import Layout
from engine.run import answers as run_orders
from engine.run import run_folder
from engine.run.answers import RankReply
from profilers.analysis.anatomy import clocks_of
from profilers.records.reader import RunRecords
from profilers.steps.clock_offset import ClockOffset, Offset
from profilers.trace.chrome import TraceError, TraceEvent, TraceReader, TraceWriter, encode
from profilers.trace.lanes import Span, kernel_events, lane_events, lanes
from workbench.home import runs
from workbench.records import archive

#: Before the first event, so that no time is negative.
_MARGIN_NS = 1_000_000
#: GPU i of rank r is process (i + 1) * this + r.
_RANKS = 10_000
#: What the ranges of a backend are called, and the first of their lanes: Linux gives threads numbers up to 2^22.
_BACKENDS = ("gloo:", "nccl:")
_BACKEND_LANE = 10_000_000
_ABOUT_PROCESSES = ("process_name", "process_labels", "process_sort_index")


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of one rank. Times of ``clock`` are subtracted from the rank's own."""

    rank: int
    path: Path
    name: str
    lanes: dict[str, list[Span]] = field(default_factory=dict)
    clock: ClockOffset = field(default_factory=ClockOffset)


def merge(
    sources: Sequence[Source], path: Path, rank_folder: Path, backend: str, metadata: Mapping[str, Any]
) -> None:
    """Write ``path``, and ``rank-K.json.gz`` for each rank in ``rank_folder``, which Holistic Trace Analysis reads.

    Raises:
        TraceError: a rank's trace is damaged or cut short.
        OSError: there is no space, or no permission.
    """
    rank_folder.mkdir(exist_ok=True)
    base_ns = min(_first_ns(source) for source in sources) - _MARGIN_NS
    offsets = {str(source.rank): _offset(source, base_ns)._asdict() for source in sources}
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "workbench": {**metadata, "clocks": offsets},
    }
    with TraceWriter(path, _with_rank_info(head, backend, sources[0].rank, len(sources))) as whole:
        for source in sources:
            _merge_one(
                source, whole, rank_folder / f"rank-{source.rank}.json.gz", head, backend, len(sources)
            )


def _with_rank_info(head: Mapping[str, Any], backend: str, rank: int, ranks: int) -> dict[str, Any]:
    return {**head, "distributedInfo": {"backend": backend, "rank": rank, "world_size": ranks}}


def _merge_one(
    source: Source, whole: TraceWriter, path: Path, head: Mapping[str, Any], backend: str, ranks: int
) -> None:
    base_ns = int(head["baseTimeNanoseconds"]) + round(
        _offset(source, int(head["baseTimeNanoseconds"])).offset_seconds * 1e9
    )
    with ExitStack() as stack:
        reader = stack.enter_context(TraceReader(source.path))
        metadata = {**_with_rank_info(head, backend, source.rank, ranks), "deviceProperties": reader.devices}
        own_writer = stack.enter_context(TraceWriter(path, metadata))
        rank_trace = _RankTrace(source, reader, base_ns, ranks)
        for event in rank_trace.events():
            encoded = encode(event)
            whole.write(encoded)
            own_writer.write(encoded)
        for event in lane_events(source.lanes, source.rank, base_ns, rank_trace.threads):
            whole.write(encode(event))
        if not rank_trace.kernels:
            for event in kernel_events(source.lanes, source.rank, backend, base_ns):
                own_writer.write(encode(event))


class _RankTrace:
    """One rank's events on the common time axis, with processes and ids that no other rank has."""

    def __init__(self, source: Source, reader: TraceReader, base_ns: int, ranks: int) -> None:
        self._source, self._reader, self._ranks = source, reader, ranks
        self._shift_us = (reader.base_ns - base_ns) / 1e3
        self._host: int | None = None
        self._named: set[int] = set()
        self._aside: list[TraceEvent] = []
        #: Numbers of the host's threads.
        self.threads: set[int] = set()
        #: Whether a GPU's kernels are among them.
        self.kernels = False

    def events(self) -> Iterator[TraceEvent]:
        """Without the profiler's own marks, which have a word for a process."""
        for event in self._reader.events():
            process = event.get("pid")
            if event.get("name") in _ABOUT_PROCESSES:
                if (event.get("args") or {}).get("labels") == "CPU":
                    self._host = process
            elif isinstance(process, int):
                yield from self._name(process)
                mapped_event = self._event(event, process)
                if process == self._host:
                    self.threads.add(event.get("tid", 0))
                if process == self._host and str(event["name"]).startswith(_BACKENDS):
                    self._aside.append(mapped_event)
                else:
                    yield mapped_event
        yield from backend_lanes(self._aside)

    def _name(self, process: int) -> Iterator[TraceEvent]:
        """Who a process is, before its first event."""
        if process in self._named:
            return
        self._named.add(process)
        host = process == self._host
        place = "host" if host else f"GPU {process}"
        number = self._number(process)
        order = self._source.rank * 100 + (0 if host else 1 + process)
        yield _about(number, "process_name", name=f"{self._source.name} ({place})")
        yield _about(number, "process_sort_index", sort_index=order)

    def _number(self, process: int) -> int:
        rank = self._source.rank
        return rank if process == self._host else (process + 1) * _RANKS + rank

    def _event(self, event: TraceEvent, process: int) -> TraceEvent:
        event["pid"] = self._number(process)
        if event["ph"] == "M":
            event.pop("ts", None)
            return event
        event["ts"] = round(event["ts"] + self._shift_us, 3)
        self.kernels = self.kernels or event.get("cat") == "kernel"
        if "id" in event:
            event["id"] = self._unique(event["id"])
        args = event.get("args")
        if args and "correlation" in args:
            args["correlation"] = self._unique(args["correlation"])
        return event

    def _unique(self, number: Any) -> Any:
        rank = self._source.rank
        return (
            number * _RANKS + rank if isinstance(number, int) and number > 0 else f"{number} of rank {rank}"
        )


def backend_lanes(calls: list[TraceEvent]) -> Iterator[TraceEvent]:
    """The backend's own ranges on lanes of their own: those of calls that are waited for later overlap others."""
    ends: list[float] = []
    for call in sorted(calls, key=lambda call: (call["pid"], call["ts"])):
        free = (number for number, end in enumerate(ends) if end <= call["ts"])
        lane = next(free, len(ends))
        thread = _BACKEND_LANE + lane
        if lane == len(ends):
            ends.append(0.0)
            name = "backend" + (f" ({lane + 1})" if lane else "")
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": call["pid"],
                "tid": thread,
                "args": {"name": name},
            }
        ends[lane] = call["ts"] + call["dur"]
        yield call | {"tid": thread}


def _about(process: int, kind: str, **args: Any) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": 0, "args": args}


def _offset(source: Source, time_ns: int) -> Offset:
    return source.clock.estimate(time_ns / 1e9)


def _first_ns(source: Source) -> int:
    """The begin of a rank's recording on the common time axis."""
    with TraceReader(source.path) as reader:
        first = next(reader.events(), {})
        begin_ns = reader.base_ns + round(float(first.get("ts") or 0.0) * 1e3)
    return begin_ns - round(_offset(source, begin_ns).offset_seconds * 1e9)


MERGED = "merged.json.gz"
#: Traces of single ranks for Holistic Trace Analysis.
EACH = "hta"
COMMAND = "trace"
#: Records of the last step on a GPU are written a step later than the trace.
_RECORDS_SECONDS = 2.0
_POLL_SECONDS = 0.1


class MergeError(WorkbenchError):
    """Traces of ranks that cannot be merged."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One order. ``state`` is asked, recording, writing, recorded or failed; ``steps_done`` of ``steps`` were recorded.

    ``first`` is None until ranks have agreed on a step, ``merge_trace`` until there is such a file.
    """

    id: str
    state: str
    steps: int
    first: int | None
    steps_done: int
    files: list[Path]
    problems: list[str]
    merged_path: Path | None

    @property
    def under_way(self) -> bool:
        """Whether ranks have still to do something for it."""
        return self.state in ("asked", "recording", "writing")


def list_traces(folder: Path) -> list[Trace]:
    """All that were ordered, the newest first."""
    wanted = run_orders.orders_of_command(folder, COMMAND)
    if not wanted:
        return []
    view = runs.load(folder)
    replies = run_orders.run_answers(folder)
    return [
        _trace(view, key, wanted[key], [answer for answer in replies if answer.id == key])
        for key in sorted(wanted, reverse=True)
    ]


def _trace(view: runs.RunView, key: str, wanted: int, replies: list[RankReply]) -> Trace:
    files = [view.folder / name for answer in replies for name in answer.files]
    problems = [f"rank {answer.rank}: {answer.problem}" for answer in replies if answer.problem]
    ranks = view.status.answering
    if len(replies) >= ranks or view.state == "ended":
        missing = sorted(set(range(ranks)) - {answer.rank for answer in replies})
        if missing:
            problems.append(f"the run ended before rank {', '.join(map(str, missing))} wrote its part")
        first = next((answer.first for answer in replies if answer.first is not None), None)
        steps_done = min((answer.recorded or 0 for answer in replies), default=0)
        merged_path = files[0].parent / MERGED if files and (files[0].parent / MERGED).is_file() else None
        return Trace(
            key, "recorded" if files else "failed", wanted, first, steps_done, files, problems, merged_path
        )
    state, first, steps_done = run_orders.how_far(view.folder, key, COMMAND, wanted)
    return Trace(key, state, wanted, first, steps_done, files, problems, None)


def running_trace(folder: Path) -> Trace | None:
    """The trace that ranks of a run are about, if there is one."""
    return next((trace for trace in list_traces(folder) if trace.under_way), None)


def merge_trace(folder: Path, trace: Trace) -> Path:
    """The one file of a recorded trace; written unless it is there.

    Raises:
        MergeError: a rank's file is damaged, or there is no space to write.
    """
    if trace.merged_path is not None:
        return trace.merged_path
    view = runs.load(folder)
    directory = trace.files[0].parent
    steps = range(trace.first or 0, (trace.first or 0) + trace.steps_done)
    metadata = {"run": view.id, "steps": [steps.start, steps.stop], "problems": trace.problems}
    try:
        sources = _sources(view, [path for path in trace.files if path.is_file()], steps)
        merge(sources, directory / MERGED, directory / EACH, view.status.backend or "gloo", metadata)
    except (TraceError, OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MergeError(f"the traces in {directory} cannot be merged: {text}") from None
    return directory / MERGED


def _sources(view: runs.RunView, files: Sequence[Path], steps: range) -> list[Source]:
    records = _records(view, files, steps)
    clocks = clocks_of(records)
    return [
        Source(rank, path, place(view, rank), lanes(records, rank, steps), clocks[rank])
        for rank, path in sorted((_rank_of(path), path) for path in files)
    ]


def _records(view: runs.RunView, files: Sequence[Path], steps: range) -> RunRecords:
    """With those of the last step of each rank, if they come in time."""
    records = archive.records(view.folder / run_folder.RECORDS)
    deadline = time.monotonic() + _RECORDS_SECONDS
    while time.monotonic() < deadline and view.state != "ended":
        recorded_steps = [records.table(_rank_of(path), "step").column("step") for path in files]
        if all(len(column) and column[-1] >= steps.stop - 1 for column in recorded_steps):
            break
        time.sleep(_POLL_SECONDS)
        records.refresh()
    return records


def _rank_of(path: Path) -> int:
    return int(path.name.partition(".")[0].removeprefix("rank-"))


def place(view: runs.RunView, rank: int) -> str:
    """A rank and where it stands: ``rank 3, dp 1 tp 0 pp 1``; of a foreign job that is not known."""
    degrees = view.layout
    if view.job is not None:
        return f"rank {rank}"
    coordinates = Layout(degrees["dp"], degrees["tp"], degrees["pp"], degrees["cp"]).coordinates(rank)
    named = f"rank {rank}, dp {coordinates.dp} tp {coordinates.tp} pp {coordinates.pp}"
    return named if degrees["cp"] == 1 else f"{named} cp {coordinates.cp}"
