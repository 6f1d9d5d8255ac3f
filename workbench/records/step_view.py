"""From a run to one of its steps, to a rank, and to one call of a collective. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.config import run_config
from engine.config.errors import InputError
from engine.lifecycle import setting_of
from engine.run import run_folder
from profilers.analysis.anatomy import clocks_of, hosts_of
from profilers.analysis.steps import WORK
from profilers.collectives.collective_call import (
    CallKey,
    CollectiveCall,
    Groups,
    call_key,
    collective_calls,
    longest_call,
)
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.steps.clock_offset import ClockOffset
from workbench.records import archive

#: Options of ``show`` that lead to these places.
STEP, RANK, CALL = "--step", "--rank", "--call"


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in a step: seconds by phase, empty of a step that it did not record in detail.

    ``work_seconds`` is forward, backward and optimizer; ``behind_seconds`` by how much that is above the median of the
    other ranks, None with one rank.
    """

    rank: int
    host: str | None
    step_seconds: float
    measured: bool
    phases: dict[str, float] = field(default_factory=dict)
    work_seconds: float | None = None
    behind_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SlowestCall:
    """The call of a step that held a rank longest, its waiting for others included, and that rank."""

    rank: int
    call: CollectiveCall


@dataclass(frozen=True, slots=True)
class StepView:
    """One step: all ranks, and of the rank that was asked for the calls of its collectives, all or one. ``slowest`` is
    told where no rank was asked for, and a call was timed.
    """

    run: str
    step: int
    ranks: list[RankStep]
    rank: int | None = None
    calls: list[CollectiveCall] = field(default_factory=list)
    slowest: SlowestCall | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def step_view(folder: Path, step: int, rank: int | None = None, call: str | None = None) -> StepView:
    """What is recorded of a step, of a rank's calls in it, and of one call.

    Raises:
        InputError: the run has no such step, rank or call, or nothing of it was recorded.
    """
    records = archive.records(folder / run_folder.RECORDS)
    ranks = ranks_of(records, step)
    if not ranks:
        raise InputError(STEP, step, _no_step(records))
    groups, clocks = groups_of(run_folder.read_json(folder / run_folder.CONFIG)), clocks_of(records)
    if rank is None:
        return StepView(folder.name, step, ranks, slowest=_slowest(records, step, groups, clocks))
    if rank not in {rank.rank for rank in ranks}:
        first, last = ranks[0].rank, ranks[-1].rank
        raise InputError(
            RANK, rank, f"no such rank recorded step {step:,}; those that did: {first} to {last}"
        )
    calls = collective_calls(records, step, rank, groups, clocks)
    if call is not None:
        calls = [_call(calls, call, step, rank)]
    return StepView(folder.name, step, ranks, rank, calls)


def _slowest(
    records: RunRecords, step: int, groups: Groups, clocks: Mapping[int, ClockOffset]
) -> SlowestCall | None:
    call = longest_call(records, step, clocks)
    if call is None:
        return None
    rank, key = call
    calls = collective_calls(records, step, rank, groups, clocks)
    return SlowestCall(rank, next(call for call in calls if call.key == key))


def _call(calls: Sequence[CollectiveCall], text: str, step: int, rank: int) -> CollectiveCall:
    key = call_key(text)
    named = next((call for call in calls if call.key == key), None)
    if named is not None:
        return named
    if not calls:
        remedy = f"no collective was recorded of rank {rank:,} in step {step:,} (profile.collectives, profile.budget)"
    elif key is None:
        remedy = f"write it as AXIS.OPERATION.NUMBER, for example {calls[0].key.link_text()}"
    else:
        kinds = {(call.axis, call.operation): call.number + 1 for call in calls}
        keys = [CallKey(*kind, count - 1).link_text() for kind, count in kinds.items()]
        remedy = f"rank {rank:,} made others in step {step:,}, up to {', '.join(keys)}"
    raise InputError(CALL, text, remedy)


def _no_step(records: RunRecords) -> str:
    numbers = [np.ma.getdata(records.table(rank, "step").column("step")) for rank in records.ranks()]
    numbers = [steps for steps in numbers if len(steps)]
    if not numbers:
        return "no step of this run was recorded"
    first, last = min(steps.min() for steps in numbers), max(steps.max() for steps in numbers)
    return f"not recorded; there are steps {first:,} to {last:,}"


def ranks_of(records: RunRecords, step: int) -> list[RankStep]:
    """The ranks that recorded a step; if one did twice, the later record counts."""
    hosts, rows = hosts_of(records), []
    for rank in records.ranks():
        table = records.table(rank, "step")
        places = np.flatnonzero(np.ma.getdata(table.column("step")) == step)
        if len(places):
            row: Any = table.part(int(places[-1]), int(places[-1]) + 1).rows()[0]
            seconds = {phase: getattr(row, f"{phase}_seconds") for phase in PHASES}
            phases = {phase: value for phase, value in seconds.items() if value is not None}
            work = sum(phases[phase] for phase in WORK) if phases else None
            rows.append(RankStep(rank, hosts.get(rank), row.step_seconds, row.measured, phases, work))
    return _add_behind_seconds(rows)


def _add_behind_seconds(rows: Sequence[RankStep]) -> list[RankStep]:
    """With how far each is behind the median of the others."""
    work_by_rank = {row.rank: row.work_seconds for row in rows if row.work_seconds is not None}
    completed = []
    for row in rows:
        others = [seconds for rank, seconds in work_by_rank.items() if rank != row.rank]
        own_seconds = row.work_seconds
        behind_seconds = None if own_seconds is None or not others else own_seconds - float(np.median(others))
        completed.append(replace(row, behind_seconds=behind_seconds))
    return completed


def groups_of(config: Mapping[str, Any] | None) -> dict[str, list[list[int]]]:
    """The ranks that meet on each axis; empty where a run has no configuration of ours, which stands for all ranks."""
    try:
        return dict(setting_of(run_config.parse(dict(config))).groups) if config else {}
    except (InputError, ValueError):
        return {}
