"""A running run in which no step ends any more: for how long, which ranks hold it up, and what the others wait for.

That is said once no step has ended for longer than 5 seconds, than 10 times the median of the recent steps, and than
twice the longest of them. What may take long is none: ranks that evaluate, write a checkpoint or begin, the steps
before the third one has ended (kernels are compiled there), and the first one with a value that was changed. The time
counts from the last step that all ranks have ended, or from what a rank noted since, such as an evaluation's loss.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from engine.run import progress, run_folder
from engine.run.progress import WAITING, RankProgress, stopped_processes
from engine.run.run_folder import RunStatus
from profilers.analysis.events import change_rows
from profilers.analysis.rounds import recent_steps
from profilers.model.rows import ChangeRow
from profilers.records.schema import PHASES
from workbench.home.runs import RunView
from workbench.records import archive
from workbench.records.columns import Columns, fill_missing
from workbench.records.live_snapshot import Snapshot, last_note
from workbench.text import words

LEAST_SECONDS, TIMES_MEDIAN, TIMES_LONGEST = 5.0, 10.0, 2.0
#: Before so many steps have ended nobody knows how long one usually takes.
LEAST_STEPS = 3
RULE = (
    f"Said once no step has ended for longer than {LEAST_SECONDS:.0f} s, than {TIMES_MEDIAN:.0f} times the median of "
    "the recent steps, and than twice the longest; not while ranks evaluate, write a checkpoint or begin."
)
#: Where a rank is in each phase.
_WHERE = {
    "data": "waiting for its next batch",
    "forward": "in its forward pass",
    "backward": "in its backward pass",
    "optimizer": "in its optimizer step",
    "communication_exposed": "waiting for communication",
    "bubble": "waiting for a message of the pipeline",
}
_ELSEWHERE = "outside the named phases of its step"
_STOPPED = "stopped (SIGSTOP or a debugger), "
_STEP = ("step", "start_unix", "step_seconds", "between_seconds")


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank stands. ``idle_seconds`` since it last went on to another phase or was seen to move; None of one on
    another host, whose clock is its own. ``stopped``: the kernel says that its process is (SIGSTOP, or a debugger).
    """

    rank: int
    step: int
    phase: str
    idle_seconds: float | None
    stopped: bool


@dataclass(frozen=True, slots=True)
class Stall:
    """``seconds`` since the last step ended, where ``usual_seconds`` is the median of the recent ones. ``held_up_by``
    are the ranks that others wait for: stopped ones, else those that wait for nobody, else those furthest behind.
    Empty where all wait in the same step: then it is not known.
    """

    seconds: float
    usual_seconds: float
    held_up_by: tuple[int, ...]
    #: Without progress for so long ranks end the run as hung; None of a job that is not ours.
    patience_seconds: float | None
    ranks: tuple[RankPlace, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, and all in a sentence."""
        return asdict(self) | {"words": sentence(self)}


def stall_of(view: RunView) -> Stall | None:
    """Of a run as its folder has it now, whose records are read; see :func:`find_stall`."""
    if view.state != "running":
        return None
    records = archive.records(view.folder / run_folder.RECORDS)
    return _stall(
        view.status,
        run_folder.read_json(view.folder / run_folder.CONFIG) or {},
        progress.read_all(view.folder),
        {rank: _step_columns(records.table(rank, "step")) for rank in records.ranks()},
        change_rows(records),
        last_note(records, records.ranks()),
    )


def _step_columns(table: Any) -> Columns:
    return {name: fill_missing(table, name) for name in _STEP}


def find_stall(snapshot: Snapshot) -> Stall | None:
    """None while steps end, of a run that does not run, and of a trainer that only its output is heard of. Of a hang
    that was noticed its status says more.
    """
    return _stall(
        snapshot.status,
        snapshot.config,
        snapshot.ranks,
        snapshot.steps,
        snapshot.changes,
        snapshot.noted_unix,
    )


def _stall(
    status: RunStatus,
    config: Mapping[str, Any],
    ranks: Sequence[RankProgress],
    steps: Mapping[int, Columns],
    changes: Sequence[ChangeRow],
    noted_unix: float | None,
) -> Stall | None:
    if status.state != "running" or status.hang is not None or config.get("trainer"):
        return None
    if not ranks or any(rank.phase not in PHASES for rank in ranks):
        return None
    last = _last_steps(steps, recent_steps(config.get("outer")))
    if last is None or any(row.step > last.step for row in changes):
        return None
    quiet_seconds = time.time() - max(last.ended_unix, noted_unix or 0.0)
    usual = float(np.median(last.seconds))
    if quiet_seconds <= max(LEAST_SECONDS, TIMES_MEDIAN * usual, TIMES_LONGEST * float(last.seconds.max())):
        return None
    places = _places(ranks, is_here=_is_here(status))
    patience = (config.get("train") or {}).get("step_timeout_seconds")
    return Stall(quiet_seconds, usual, _culprits(places), patience, places)


@dataclass(frozen=True, slots=True)
class _LastSteps:
    """The last step that all ranks have ended, when that was, and seconds of the recent ones."""

    step: int
    ended_unix: float
    seconds: np.ndarray[Any, np.dtype[np.float64]]


def _last_steps(steps: Mapping[int, Columns], recent: int) -> _LastSteps | None:
    """By the ranks that are furthest behind; None while they have ended too few."""
    written = [columns for columns in steps.values() if len(columns.get("step", ()))]
    if not written:
        return None
    step = min(int(columns["step"][-1]) for columns in written)
    columns_of_step = [columns for columns in written if int(columns["step"][-1]) == step]
    ended = max(float(columns["start_unix"][-1] + columns["step_seconds"][-1]) for columns in columns_of_step)
    step_fields = {name: columns_of_step[0][name][-recent:] for name in _STEP}
    if len(step_fields["step"]) < LEAST_STEPS:
        return None
    return _LastSteps(
        step, ended, step_fields["step_seconds"] + np.nan_to_num(step_fields["between_seconds"])
    )


def idle_seconds(snapshot: Snapshot) -> list[float | None]:
    """Of each of its ranks, while the run goes on: since when it stands where it is; None where no clock tells."""
    is_here = snapshot.running and _is_here(snapshot.status)
    return [rank.age_seconds if is_here and not rank.another_host else None for rank in snapshot.ranks]


def _is_here(status: RunStatus) -> bool:
    """Whether rank 0's host is this one: process numbers and the clock of its page mean something on it alone."""
    return status.owner is not None and status.owner.host == socket.gethostname()


def _places(ranks: Sequence[RankProgress], *, is_here: bool) -> tuple[RankPlace, ...]:
    stopped = stopped_processes([rank for rank in ranks if is_here and not rank.another_host], 0.0)
    places = []
    for rank in ranks:
        is_on_host = is_here and not rank.another_host
        idle = rank.age_seconds if is_on_host else None
        places.append(RankPlace(rank.rank, rank.step, rank.phase, idle, is_on_host and rank.pid in stopped))
    return tuple(places)


def _culprits(places: Sequence[RankPlace]) -> tuple[int, ...]:
    """The first kind of these that there is."""
    last_step = min(place.step for place in places)
    at_work = [place for place in places if place.phase not in WAITING]
    last = [place for place in places if place.step == last_step]
    kinds = (
        [place for place in places if place.stopped],
        [place for place in at_work if place.step == last_step],
        at_work,
        last if len(last) < len(places) else [],
    )
    return tuple(place.rank for place in next((kind for kind in kinds if kind), []))


def sentence(stall: Stall) -> str:
    """For how long, who holds it up and who waits; and what ends it."""
    text = f"No step has ended for {words.rough_duration(stall.seconds)} (usual: {words.seconds(stall.usual_seconds)})"
    end = stall.patience_seconds
    after = "" if end is None else f". Ranks that do not move for {end:g} s end the run as hung"
    return f"{text}: {_ranks_text(stall)}{after}."


def _ranks_text(stall: Stall) -> str:
    culprits = [place for place in stall.ranks if place.rank in stall.held_up_by]
    others = [place for place in stall.ranks if place.rank not in stall.held_up_by]
    if not culprits:
        return f"all ranks are {_waiting(others)}, and which one holds up the others is not known"
    if len(others) > 1 and all(place.phase in WAITING for place in others):
        return "; ".join([*_lines_of_places(culprits), f"the others are {_waiting(others)}"])
    return "; ".join(_lines_of_places(culprits) + _lines_of_places(others))


def _lines_of_places(places: Sequence[RankPlace]) -> list[str]:
    """Ranks that do the same, together."""
    groups = defaultdict[str, list[int]](list)
    for place in places:
        position = _WHERE.get(place.phase, _ELSEWHERE)
        groups[f"{_STOPPED if place.stopped else ''}{position}"].append(place.rank)
    return [
        f"{words.named_ranks(ranks)} is {position}"
        if len(ranks) == 1
        else f"{words.named_ranks(ranks)} are {position.replace(' its ', ' their ')}"
        for position, ranks in groups.items()
    ]


def _waiting(places: Sequence[RankPlace]) -> str:
    return " or ".join(sorted({_WHERE[place.phase] for place in places}))
