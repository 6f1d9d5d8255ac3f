"""The traces of a run: ordered, being recorded, or recorded; and their merging into one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.errors import WorkbenchError
from engine.config.layout import Layout
from engine.run import run_folder
from profilers.analysis.anatomy import clocks_of
from profilers.records.reader import RunRecords
from profilers.trace.chrome import TraceError
from profilers.trace.lanes import lanes
from workbench import archive, runs
from workbench import orders as run_orders
from workbench.orders import Answer
from workbench.trace_merge import Source, merge

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
    """One order. ``state`` is asked, recording, writing, recorded or failed; ``done`` of ``steps`` were recorded.

    ``first`` is None until ranks have agreed on a step, ``merged`` until there is such a file.
    """

    id: str
    state: str
    steps: int
    first: int | None
    done: int
    files: list[Path]
    problems: list[str]
    merged: Path | None

    @property
    def under_way(self) -> bool:
        """Whether ranks have still to do something for it."""
        return self.state in ("asked", "recording", "writing")


def of_run(folder: Path) -> list[Trace]:
    """All that were ordered, the newest first."""
    wanted = run_orders.asked(folder, COMMAND)
    if not wanted:
        return []
    view = runs.load(folder)
    given = run_orders.of_run(folder)
    return [
        _trace(view, key, wanted[key], [answer for answer in given if answer.id == key])
        for key in sorted(wanted, reverse=True)
    ]


def _trace(view: runs.RunView, key: str, wanted: int, given: list[Answer]) -> Trace:
    files = [view.folder / name for answer in given for name in answer.files]
    problems = [f"rank {answer.rank}: {answer.problem}" for answer in given if answer.problem]
    world_size = int(view.status.get("world_size") or 1)
    if len(given) >= world_size or view.state == "ended":
        missing = sorted(set(range(world_size)) - {answer.rank for answer in given})
        if missing:
            problems.append(f"the run ended before rank {', '.join(map(str, missing))} wrote its part")
        first = next((answer.first for answer in given if answer.first is not None), None)
        done = min((answer.recorded or 0 for answer in given), default=0)
        merged = files[0].parent / MERGED if files and (files[0].parent / MERGED).is_file() else None
        return Trace(key, "recorded" if files else "failed", wanted, first, done, files, problems, merged)
    state, first, done = run_orders.how_far(view.folder, key, COMMAND, wanted)
    return Trace(key, state, wanted, first, done, files, problems, None)


def under_way(folder: Path) -> Trace | None:
    """The trace that ranks of a run are about, if there is one."""
    return next((trace for trace in of_run(folder) if trace.under_way), None)


def merged(folder: Path, trace: Trace) -> Path:
    """The one file of a recorded trace; written unless it is there.

    Raises:
        MergeError: a rank's file is damaged, or there is no space to write.
    """
    if trace.merged is not None:
        return trace.merged
    view = runs.load(folder)
    found = trace.files[0].parent
    steps = range(trace.first or 0, (trace.first or 0) + trace.done)
    about = {"run": view.id, "steps": [steps.start, steps.stop], "problems": trace.problems}
    try:
        sources = _sources(view, [path for path in trace.files if path.is_file()], steps)
        merge(sources, found / MERGED, found / EACH, str(view.status.get("backend") or "gloo"), about)
    except (TraceError, OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MergeError(f"the traces in {found} cannot be merged: {text}") from None
    return found / MERGED


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
        known = [records.table(_rank_of(path), "step").column("step") for path in files]
        if all(len(column) and column[-1] >= steps.stop - 1 for column in known):
            break
        time.sleep(_POLL_SECONDS)
        records.refresh()
    return records


def _rank_of(path: Path) -> int:
    return int(path.name.partition(".")[0].removeprefix("rank-"))


def place(view: runs.RunView, rank: int) -> str:
    """A rank and where it stands: ``rank 3, dp 1 tp 0 pp 1``."""
    degrees = view.layout
    at = Layout(*(degrees[axis] for axis in ("dp", "tp", "pp", "cp"))).coordinates(rank)
    named = f"rank {rank}, dp {at.dp} tp {at.tp} pp {at.pp}"
    return named if degrees["cp"] == 1 else f"{named} cp {at.cp}"
