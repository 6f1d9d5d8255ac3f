"""The events of a run as rows of its summary. Pure.

Live changes of the configuration, checkpoints, compression plans, rounds of local SGD, the loss on held-out text,
parameters that compression leaves alone, and how many steps were recorded in detail.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar

import msgspec
import numpy as np

from profilers.analysis.communication import communication_rows
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import JoinedSteps
from profilers.model.rows import (
    AdapterRow,
    ChangeRow,
    CheckpointRow,
    ExpertSlotRow,
    MemoryPlanRow,
    NetworkRow,
    OuterRow,
    PlanRow,
    PrefetchRow,
    QualityRow,
    ResumeRow,
    SequenceGroupRow,
    SequencePlanRow,
    UpdateRow,
)
from profilers.records.reader import RunRecords
from profilers.records.schema import UNDONE_EVENT, Event
from profilers.steps.sampling_budget import SAMPLING_EVENT

CHANGE_EVENT = "changed"


def change_rows(records: RunRecords) -> list[ChangeRow]:
    """Every change in order, as rank 0 told it; what cannot be read is left out."""
    events = retained_events(records.events(0)) if 0 in records.ranks() else []
    rows = []
    for event in events:
        if event.kind != CHANGE_EVENT:
            continue
        try:
            rows.append(msgspec.convert({"time_unix": event.time_unix} | event.data, ChangeRow))
        except msgspec.ValidationError:
            continue
    return rows


def retained_events(events: Sequence[Event]) -> list[Event]:
    """Without changes, plans and held-out losses of steps that were undone afterwards: a loss before a step belongs to
    those up to it, a change or a plan to those from it on.
    """
    retained = list[Event]()
    for event in events:
        if event.kind == UNDONE_EVENT:
            first = int(event.data.get("step") or 0)
            retained = [event for event in retained if not _undone(event, first)]
        else:
            retained.append(event)
    return retained


#: Kinds that tell what holds from a step on.
_OF_STEPS = frozenset((CHANGE_EVENT, "plan", "outer", "sequence_groups"))


def _undone(event: Event, first: int) -> bool:
    step = event.data.get("step")
    if not isinstance(step, int):
        return False
    return step > first if event.kind == VALIDATION_EVENT else event.kind in _OF_STEPS and step >= first


def last_change(rows: list[ChangeRow]) -> int | None:
    """The step from which on the last configuration held; None if it always did."""
    return max((row.step for row in rows), default=None)


def add_step_times(rows: list[ChangeRow], steps: JoinedSteps) -> list[ChangeRow]:
    """The changes with the mean step before and after each, up to the neighbouring ones."""
    places = sorted({row.step for row in rows})
    bounds = [None, *places, None]
    means = {
        step: (_mean(steps, bounds[place], step), _mean(steps, step, bounds[place + 2]))
        for place, step in enumerate(places)
    }
    return [replace(row, seconds_before=means[row.step][0], seconds_after=means[row.step][1]) for row in rows]


def _mean(steps: JoinedSteps, first: int | None, end: int | None) -> float | None:
    measured = steps.select_range(first, end).select_measured()
    return float(wall_seconds(measured).mean()) if len(measured.steps) else None


Row = TypeVar("Row")


def checkpoint_rows(records: RunRecords) -> list[CheckpointRow]:
    """Every save that was tried, in order; what cannot be read is left out."""
    rows = [_convert(data, CheckpointRow) for data in _events(records, "checkpoint")]
    return [row for row in rows if row is not None]


def resume_source(records: RunRecords) -> ResumeRow | None:
    """What the run continued from."""
    return next((_convert(data, ResumeRow) for data in _events(records, "resumed")), None)


def time_budget(records: RunRecords) -> dict[str, Any]:
    """Of a run with a time that ended or was stopped, what it was given and took, by the names of the summary; else
    nothing.
    """
    budget = next(iter(_events(records, "time_budget")), {})
    seconds, took = budget.get("seconds"), budget.get("took")
    if not isinstance(seconds, int | float) or not isinstance(took, int | float):
        return {}
    stopped = budget.get("stopped") is True
    return {"budget_seconds": float(seconds), "budget_used_seconds": float(took), "budget_stopped": stopped}


def planned_steps(records: RunRecords) -> int | None:
    """How many steps a run with a time will have, or had, as it told last; None of one that did not tell yet."""
    lengths = (data.get("steps") for data in _events(records, LENGTH_EVENT))
    return next((steps for steps in reversed(list(lengths)) if isinstance(steps, int)), None)


def _events(records: RunRecords, kind: str) -> list[dict[str, Any]]:
    """Of rank 0, which speaks for all."""
    events = retained_events(records.events(0)) if 0 in records.ranks() else []
    return [event.data for event in events if event.kind == kind]


def _convert(data: dict[str, Any], kind: type[Row]) -> Row | None:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return None


PLAN_EVENT = "plan"


def plan_rows(records: RunRecords) -> list[PlanRow]:
    """In order, as rank 0 told them; what cannot be read is left out."""
    rows = [_convert(data, PlanRow) for data in _events(records, PLAN_EVENT)]
    return [row for row in rows if row is not None]


MEMORY_PLAN_EVENT = "memory_plan"


def memory_plan_rows(records: RunRecords) -> list[MemoryPlanRow]:
    """By stage, as the first rank of each told it; what cannot be read is left out."""
    rows = [_convert(data, MemoryPlanRow) for data in _of_ranks(records, MEMORY_PLAN_EVENT)]
    return sorted((row for row in rows if row is not None), key=lambda row: row.stage)


EXPERT_SLOTS_EVENT, AHEAD_EVENT = "expert_slots", "batches_ahead"


def expert_slot_rows(records: RunRecords) -> list[ExpertSlotRow]:
    """As each rank told it at its end."""
    rows = [_convert(data, ExpertSlotRow) for data in _of_ranks(records, EXPERT_SLOTS_EVENT)]
    return sorted((row for row in rows if row is not None), key=lambda row: row.rank)


SEQUENCE_GROUPS_EVENT = "sequence_groups"
_SEQUENCE_STEPS = 100


class SequenceStep(msgspec.Struct, frozen=True):
    """What a rank tells of a step: of each micro-batch its group's number, degree, documents, tokens, planned seconds
    and its own; and how the plan was found.
    """

    step: int
    groups: list[tuple[int, int, int, int, float, float]]
    planner_seconds: float
    waited_seconds: float
    proven: bool
    factors: dict[str, float] = {}


def sequence_rows(records: RunRecords) -> dict[str, Any]:
    """Groups and plans of the last steps, by the names of the summary. A group's seconds are the fewest of its ranks:
    those of the one that came last.
    """
    groups, plans = dict[tuple[int, int, int], SequenceGroupRow](), dict[int, SequencePlanRow]()
    for rank in records.ranks():
        for event in retained_events(records.events(rank)):
            row = _convert(event.data, SequenceStep) if event.kind == SEQUENCE_GROUPS_EVENT else None
            if row is None:
                continue
            if rank == 0:
                plans[row.step] = SequencePlanRow(
                    row.step, row.planner_seconds, row.waited_seconds, row.proven, row.factors
                )
            for place, (number, degree, documents, tokens, planned, seconds) in enumerate(row.groups):
                key = row.step, place, number
                least = min(seconds, groups[key].seconds if key in groups else math.inf)
                facts = row.step, place, degree, documents, tokens, planned
                groups[key] = SequenceGroupRow(*facts, seconds=least)
    first = max(plans, default=0) - _SEQUENCE_STEPS
    return {
        "sequence_groups": [groups[key] for key in sorted(groups) if key[0] > first and groups[key].tokens],
        "sequence_plans": [plans[step] for step in sorted(plans) if step > first],
    }


def ahead_rows(records: RunRecords) -> list[PrefetchRow]:
    """As each rank told it at its end."""
    rows = [_convert(data, PrefetchRow) for data in _of_ranks(records, AHEAD_EVENT)]
    return sorted((row for row in rows if row is not None), key=lambda row: row.rank)


NETWORKS_EVENT = "networks"


def network_rows(records: RunRecords) -> list[NetworkRow]:
    """By axis and network, as ranks told it when they made their groups; what cannot be read is left out."""
    ranks_by_network: dict[tuple[str, str | None, bool | None], list[int]] = {}
    for rank in records.ranks():
        data = [event.data for event in records.events(rank) if event.kind == NETWORKS_EVENT]
        for group in data[-1].get("groups", []) if data else []:
            row = _convert(group | {"ranks": [rank]}, NetworkRow)
            if row is not None:
                ranks = ranks_by_network.setdefault((row.axis, row.network, row.inside), [])
                ranks += [rank] if rank not in ranks else []
    return [NetworkRow(*key, ranks) for key, ranks in ranks_by_network.items()]


def _of_ranks(records: RunRecords, kind: str) -> list[dict[str, Any]]:
    return [event.data for rank in records.ranks() for event in records.events(rank) if event.kind == kind]


ADAPTED_EVENT = "adapted"


def adapted_row(records: RunRecords) -> AdapterRow | None:
    """What rank 0 told at the end of a run with a frozen model; None of any other."""
    rows = [_convert(data, AdapterRow) for data in _events(records, ADAPTED_EVENT)]
    return next((row for row in reversed(rows) if row is not None), None)


UPDATE_EVENT = "update"


def update_row(records: RunRecords) -> UpdateRow | None:
    """As rank 0 told it; None where all is trained."""
    rows = [_convert(data, UpdateRow) for data in _events(records, UPDATE_EVENT)]
    return next((row for row in rows if row is not None), None)


LOCAL_UPDATE_EVENT = "outer"


class OuterAverage(msgspec.Struct, frozen=True):
    """One average: taken over after ``step`` in ``round``, of the weights at the end of round ``average_of``."""

    step: int
    round: int
    average_of: int
    staleness: int
    delay_steps: int
    fragment: int
    wait_seconds: float


def outer_averages(records: RunRecords, rank: int) -> list[OuterAverage]:
    """Every average that a rank took over, in order; what cannot be read is left out."""
    averages = []
    for event in records.events(rank) if rank in records.ranks() else []:
        if event.kind == LOCAL_UPDATE_EVENT:
            try:
                averages.append(msgspec.convert(event.data, OuterAverage))
            except msgspec.ValidationError:
                continue
    return averages


def outer_row(records: RunRecords) -> OuterRow | None:
    """All of rank 0; None without an outer loop, or before its first average."""
    averages = outer_averages(records, 0)
    if not averages:
        return None
    stale = [average.staleness for average in averages]
    at_end = [average.wait_seconds for average in averages if average.staleness and not average.delay_steps]
    during = [average for average in averages if not average.staleness or average.delay_steps] or averages
    return OuterRow(
        len(averages),
        len({average.round for average in averages}),
        min(stale),
        max(stale),
        fmean(average.delay_steps for average in during),
        fmean(average.wait_seconds for average in during),
        sum(at_end) if at_end and len(during) < len(averages) else None,
    )


VALIDATION_EVENT = "validation"
#: Of a run with a time: how many steps it will have, told anew while it goes.
LENGTH_EVENT = "length"


def quality_rows(records: RunRecords, steps: JoinedSteps, backend: str) -> list[QualityRow]:
    """One for each time that the loss on held-out text was taken, in the order of steps."""
    if not len(steps.steps):
        return []
    rows, before, wire = [], None, 0.0
    seconds = wall_seconds(steps)
    for step, loss in sorted(_losses(records, steps).items()):
        sent = _sent_bytes(records, steps, before, step, backend)
        wire += math.nan if sent is None else sent
        passed = float(seconds[steps.steps < step].sum())
        rows.append(QualityRow(step, loss, passed, None if math.isnan(wire) else wire))
        before = step
    return rows


def _losses(records: RunRecords, steps: JoinedSteps) -> dict[int, float]:
    """Means over the ranks that computed them; one that does not tell its step was taken at the end."""
    return losses_before_steps(records, int(steps.steps[-1]) + 1)


def losses_before_steps(
    records: RunRecords, end: int | None = None, measure: str = "loss"
) -> dict[int, float]:
    """The loss on held-out text by the step before which it was taken: means over the ranks that computed it, each on
    text of its own, once all of them told theirs. ``end`` is the step of one that does not tell its own. So with
    ``measure`` else is taken there: "partial_loss" or "metric".
    """
    losses, wanted = defaultdict[int, dict[int, float]](dict), dict[int, int]()
    for rank in records.ranks():
        for event in retained_events(records.events(rank)):
            loss, step = event.data.get(measure), event.data.get("step", end)
            is_loss = event.kind == VALIDATION_EVENT and isinstance(loss, float | int) and math.isfinite(loss)
            if is_loss and isinstance(step, int) and loss is not None:
                losses[step][rank] = loss
                wanted[step] = int(event.data.get("ranks", 1))  # records of earlier versions do not say
    return {
        step: sum(losses_of_ranks.values()) / len(losses_of_ranks)
        for step, losses_of_ranks in losses.items()
        if len(losses_of_ranks) >= wanted[step]
    }


def _sent_bytes(
    records: RunRecords, steps: JoinedSteps, first: int | None, end: int, backend: str
) -> float | None:
    """Bytes that a rank sent in the steps between, by formula, the mean over ranks; None if one is not known.

    Steps that were not recorded in detail count with the mean of those that were, if need be of the whole run's.
    """
    between = steps.select_range(first, end)
    detailed = between.select_detailed().steps
    if not len(detailed):
        detailed = steps.select_detailed().steps
    tables = [records.table(rank, "comm") for rank in steps.ranks]
    rows = communication_rows(tables, detailed, max(1, len(detailed) * len(tables)), backend=backend)
    unrecorded = len(tables) > 1 and not any(map(len, tables))  # an outer loop sends nothing in most steps
    if unrecorded or any(row.wire_bytes is None for row in rows):
        return None
    return len(between.steps) * float(np.sum([row.wire_bytes for row in rows]))


def uncompressed_parameters(records: RunRecords) -> dict[str, str]:
    """Name -> reason, of all ranks; what a rank said last counts."""
    reasons: dict[str, str] = {}
    for rank in records.ranks():
        names = [event.data.get("parameters") for event in records.events(rank) if event.kind == "left_alone"]
        if names and isinstance(names[-1], dict):
            reasons |= {str(name): str(reason) for name, reason in names[-1].items()}
    return reasons


_SOME = (
    "phases, collectives and memory come from {detailed:,} of the {measured:,} measured steps: recording all would "
    "cost about {cost:.1%} of a step, and profile.budget is {budget:.1%}; set it to null to record all"
)


def detail_notes(records: RunRecords, measured: JoinedSteps, detailed: JoinedSteps) -> tuple[str, ...]:
    """A note where some of the measured steps were recorded as a whole only."""
    notes = [
        event.data
        for rank in records.ranks()
        for event in records.events(rank)
        if event.kind == SAMPLING_EVENT
    ]
    if not notes or len(detailed.steps) == len(measured.steps):
        return ()
    most = max(notes, key=lambda data: float(data["cost"]))
    counts = {"detailed": len(detailed.steps), "measured": len(measured.steps)}
    return (_SOME.format(cost=float(most["cost"]), budget=float(most["budget"]), **counts),)
