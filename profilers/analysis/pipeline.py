"""The bubble of a pipeline from its actions as they ran, and what the ranks waited for; pure.

A pipeline's step lasts from the first action of any of its ranks to the last one's end. What a rank does not spend in
actions of that is idle; the bubble is the idle share, idle / (ranks x span). Idle time before an action whose message
comes from another rank is waiting for the neighbour until that rank's own action ends, and the transfer from then on.
What a rank still needs for its own data by then is a gap of the rank itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from profilers.model.rows import PipelineRow
from profilers.records.table import Table
from profilers.steps.clock_offset import ClockOffset

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Places = np.ndarray[Any, np.dtype[np.int64]]
_ORDER = "FBIW"
_FORWARD, _WEIGHT = _ORDER.index("F"), _ORDER.index("W")


class _Actions(NamedTuple):
    """Actions of one pipeline, sorted by step, rank and start; times by the clock of rank 0."""

    step: _Places
    rank: _Places
    work: _Places
    stage: _Places
    micro_batch: _Places
    start: _Floats
    end: _Floats
    #: When the rank had the step's data; NaN if unknown.
    ready: _Floats


class _Idle(NamedTuple):
    """Seconds of all ranks and steps."""

    span: float
    busy: float
    waiting: float
    transfer: float
    gaps: float
    rank_steps: int


def pipeline_of(
    tables: Mapping[int, Table],
    pipelines: Sequence[Sequence[int]],
    steps: _Places,
    clocks: Mapping[int, ClockOffset],
    ready: Mapping[int, _Floats] | None = None,
) -> PipelineRow | None:
    """Means over ``steps`` and all pipelines (each a group of ranks); None where no whole step was recorded.

    ``tables`` hold the actions of each rank; ``ready`` the Unix time, by the rank's own clock, at which it had the data
    of each of ``steps``, where that is known.
    """
    pipelines_actions = [
        _actions({rank: tables[rank] for rank in ranks}, steps, clocks, ready or {}) for ranks in pipelines
    ]
    whole = [actions for actions in pipelines_actions if actions is not None]
    if not whole:
        return None
    idle = [_idle(actions) for actions in whole]
    span, busy, waiting, transfer, gaps, rank_steps = (sum(values) for values in zip(*idle, strict=True))
    middle = float(whole[0].start[len(whole[0].start) // 2])
    errors = [clock.estimate(middle).error_seconds for clock in clocks.values()]
    return PipelineRow(
        ranks=len(pipelines[0]),
        steps=int(rank_steps) // (len(whole) * len(pipelines[0])),
        bubble_fraction=1.0 - busy / span,
        idle_seconds=(span - busy) / rank_steps,
        waiting_seconds=waiting / rank_steps,
        transfer_seconds=transfer / rank_steps,
        gap_seconds=gaps / rank_steps,
        action_seconds=_medians(whole),
        clock_error_seconds=sum(sorted(errors)[-2:]),
    )


def _actions(
    tables: Mapping[int, Table],
    steps: _Places,
    clocks: Mapping[int, ClockOffset],
    ready: Mapping[int, _Floats],
) -> _Actions | None:
    """Of those ``steps`` (ascending) that every rank recorded as a whole; None if there is none."""
    unknown = np.full(len(steps), np.nan)
    parts = [
        _of_rank(rank, table, clocks.get(rank, ClockOffset()), steps, ready.get(rank, unknown))
        for rank, table in tables.items()
    ]
    complete = np.logical_and.reduce([_whole(part.step, steps) for part in parts])
    columns: Any = zip(*parts, strict=True)
    joined: list[Any] = [np.concatenate(column) for column in columns]
    step, rank, start = joined[0], joined[1], joined[5]
    order = np.lexsort((start, rank, step))
    order = order[np.isin(step[order], steps[complete])]
    return _Actions(*[column[order] for column in joined]) if len(order) else None


def _whole(of_rank: _Places, steps: _Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which steps have all of a rank's actions: as many as the one with most."""
    places = np.searchsorted(steps, of_rank[np.isin(of_rank, steps)])
    counts = np.bincount(places, minlength=len(steps))
    return np.asarray(counts == max(1, counts.max(initial=0)))


def _of_rank(rank: int, table: Table, clock: ClockOffset, steps: _Places, ready: _Floats) -> _Actions:
    codes, names = table.codes("work")
    meaning = np.zeros(max(names, default=0) + 1, dtype=np.int64)
    for code, name in names.items():
        meaning[code] = _ORDER.index(name)
    start = clock.align(np.ma.getdata(table.column("start_unix")))
    step, stage, micro_batch = (
        np.ma.getdata(table.column(name)).astype(np.int64) for name in ("step", "stage", "micro_batch")
    )
    work = meaning[np.ma.getdata(codes).astype(np.int64)]
    end = start + np.ma.getdata(table.column("seconds"))
    place = np.minimum(np.searchsorted(steps, step), len(steps) - 1)
    had_data = np.where(steps[place] == step, clock.align(ready)[place], np.nan)
    return _Actions(step, np.full(len(table), rank), work, stage, micro_batch, start, end, had_data)


def _idle(actions: _Actions) -> _Idle:
    """Sums over all steps of one pipeline."""
    _, step = np.unique(actions.step, return_inverse=True)
    count, ranks = int(step.max()) + 1, len(np.unique(actions.rank))
    begin, finish = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(begin, step, actions.start)
    np.maximum.at(finish, step, actions.end)
    first = np.append(True, (np.diff(actions.step) != 0) | (np.diff(actions.rank) != 0))
    last = np.append(first[1:], True)
    free = np.where(first, begin[step], np.append(0.0, actions.end[:-1]))
    idle = np.maximum(actions.start - free, 0.0)
    dependency_times, from_other = _dependency_times(actions, step)
    waiting = np.where(from_other, np.clip(dependency_times - free, 0.0, idle), 0.0)
    arriving = np.where(from_other, idle - waiting, 0.0)
    late = np.nan_to_num(actions.ready - np.fmax(dependency_times, begin[step]))
    loading = np.where(first, np.clip(late, 0.0, arriving), 0.0)
    drained = float((finish[step] - actions.end)[last].sum())
    return _Idle(
        span=float((finish - begin).sum()) * ranks,
        busy=float((actions.end - actions.start).sum()),
        waiting=float(waiting.sum()) + drained,
        transfer=float((arriving - loading).sum()),
        gaps=float(idle[~from_other].sum() + loading.sum()),
        rank_steps=count * ranks,
    )


def _dependency_times(
    actions: _Actions, step: _Places
) -> tuple[_Floats, np.ndarray[Any, np.dtype[np.bool_]]]:
    """For each action, when what it needs was made (NaN if unknown), and whether another rank made it.

    A forward needs that of the stage before, a backward (or its input part) that of the stage after.
    """
    stages, micro_batches = int(actions.stage.max()) + 2, int(actions.micro_batch.max()) + 1

    def key(stage: _Places) -> _Places:
        backward = (actions.work != _FORWARD).astype(np.int64)
        return np.asarray(((step * stages + stage) * micro_batches + actions.micro_batch) * 2 + backward)

    gives = np.flatnonzero(actions.work != _WEIGHT)
    order = gives[np.argsort(key(actions.stage)[gives])]
    keys = key(actions.stage)[order]
    wanted = key(actions.stage + np.where(actions.work == _FORWARD, -1, 1))
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    recorded = (keys[places] == wanted) & (actions.work != _WEIGHT)
    recorded &= (actions.work != _FORWARD) | (actions.stage > 0)
    end = np.where(recorded, actions.end[order[places]], np.nan)
    return end, recorded & (actions.rank[order[places]] != actions.rank)


def _medians(pipelines: Sequence[_Actions]) -> dict[str, float]:
    """Median seconds of an action of each kind."""
    work = np.concatenate([actions.work for actions in pipelines])
    seconds = np.concatenate([actions.end - actions.start for actions in pipelines])
    return {
        name: float(np.median(seconds[work == code]))
        for code, name in enumerate(_ORDER)
        if (work == code).any()
    }
