"""The anatomy of a step for a run's summary: axes, bubble, experts, warm-up, clocks, straggler and gaps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from profilers.analysis.exposed_communication import seconds_by_axis
from profilers.analysis.pipeline import pipeline_of
from profilers.analysis.statistics import warmup_steps
from profilers.analysis.steps import JoinedSteps, gap_rows, rank_skew, skew_row, slowest_seconds, work_seconds
from profilers.model.rows import ClockRow, ExpertRow, TaskRow
from profilers.model.run_summary import RunFacts
from profilers.records.reader import RunRecords
from profilers.records.schema import Event, TaskSample
from profilers.records.table import Table
from profilers.steps.clock_offset import ClockOffset, Offset

#: The kind of the event with a rank's offset against rank 0.
EVENT = "clock"


def clocks_of(records: RunRecords) -> dict[int, ClockOffset]:
    """Each rank's clock; a rank that told nothing is taken to have that of rank 0."""
    return {rank: _clock(records.events(rank)) for rank in records.ranks()}


def clock_rows(clocks: dict[int, ClockOffset], time_unix: float) -> list[ClockRow]:
    """The offsets at one time; empty if all ranks have one clock."""
    offsets = {rank: clock.estimate(time_unix) for rank, clock in clocks.items()}
    if not any(offset.error_seconds for offset in offsets.values()):
        return []
    return [ClockRow(rank, offset.offset_seconds, offset.error_seconds) for rank, offset in offsets.items()]


def _clock(events: list[Event]) -> ClockOffset:
    data = [event.data for event in events if event.kind == EVENT]
    names = Offset._fields
    return ClockOffset(
        [
            Offset(*(float(values[name]) for name in names))
            for values in data
            if all(name in values for name in names)
        ]
    )


_STILL_WARM = (
    "by their times the first {found:,} steps are warm-up, but only {left_out:,} were excluded: the measured steps "
    "include warm-up; raise train.warmup to {found:,}"
)


def warmup_of(steps: JoinedSteps, notes: tuple[str, ...]) -> dict[str, Any]:
    """Steps at the start that were not measured, and those that the step times themselves show to be warm-up.

    Both are counted from the first of ``steps``: those recorded, or those since the configuration last changed.
    Where measured steps still hold warm-up, a note is added.
    """
    if not len(steps.steps):
        return {"notes": list(notes)}
    left_out = steps.left_out
    warmup = warmup_steps(slowest_seconds(steps))
    warmup_note = [_STILL_WARM.format(found=warmup, left_out=left_out)] if (warmup or 0) > left_out else []
    return {"warmup_steps": left_out, "warmup_steps_found": warmup, "notes": [*notes, *warmup_note]}


def anatomy(measured: JoinedSteps, records: RunRecords, facts: RunFacts) -> dict[str, Any]:
    """What the measured steps show; there is at least one."""
    clocks = clocks_of(records)
    tables = [records.table(rank, "comm") for rank in measured.ranks]
    by_axis = seconds_by_axis(measured, tables)
    middle = float(np.median(measured.values["start_unix"].filled(0.0)))
    actions = {rank: records.table(rank, "action") for rank in range(facts.world_size)}
    had_data = (measured.values["start_unix"] + measured.values["data_seconds"]).filled(np.nan)
    ready = dict(zip(measured.ranks, had_data, strict=True))
    return {
        "exposed_seconds_by_axis": by_axis.exposed,
        "hidden_seconds_by_axis": by_axis.hidden,
        "hidden_communication_seconds": by_axis.hidden_together,
        "pipeline": pipeline_of(actions, facts.pipelines, measured.steps, clocks, ready),
        "experts": expert_rows(
            [records.table(rank, "expert") for rank in measured.ranks],
            measured.steps,
            facts.layout.get("ep", 1),
        ),
        "clocks": clock_rows(clocks, middle),
        "gaps": gap_rows({rank: records.table(rank, "span") for rank in measured.ranks}, measured.steps),
        **_straggler(measured, records),
    }


def expert_rows(tables: Sequence[Table], steps: np.ndarray[Any, Any], ep: int = 1) -> list[ExpertRow]:
    """One for each layer whose load ranks recorded in these steps; its experts lie in order on ``ep`` ranks."""
    tables_of_ranks = [_expert_columns(table, steps) for table in tables]
    columns = {
        name: np.concatenate([table[name] for table in tables_of_ranks])
        for name in (tables_of_ranks[0] if tables_of_ranks else {})
    }
    rows = []
    for number in np.unique(columns["layer"]):
        of_layer = {name: column[columns["layer"] == number] for name, column in columns.items()}
        if of_layer["choices"].sum():
            rows.append(replace(_expert_row(int(number), of_layer, ep), **_bucket_fractions(of_layer)))
    return rows


def _expert_columns(table: Table, steps: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """One rank's samples of these steps, and ``of``: the choices of each one's step and layer."""
    chosen = np.isin(table.column("step").filled(-1), steps)
    names = ("step", "layer", "expert", "choices", "dropped", "probability", "buckets", "residual")
    columns = {name: table.column(name).filled(np.nan if name == "residual" else 0)[chosen] for name in names}
    places = np.stack([columns["step"], columns["layer"]])
    _, group = np.unique(places, axis=1, return_inverse=True)
    columns["of"] = np.bincount(group.ravel(), columns["choices"])[group.ravel()]
    return columns


def _expert_row(layer: int, samples: Mapping[str, np.ndarray[Any, Any]], ep: int) -> ExpertRow:
    experts = samples["expert"].astype(np.int64)
    fell, sums, sample_counts = (
        np.bincount(experts, values)
        for values in (samples["choices"], samples["probability"] * samples["of"], samples["of"])
    )
    load, probability, count = fell / fell.sum(), sums / sample_counts, len(fell)
    by_rank = load.reshape(ep, -1).sum(axis=1) if ep > 1 and count % ep == 0 else None
    return ExpertRow(
        layer,
        load.tolist(),
        float(np.maximum(load - 1 / count, 0.0).sum()),
        float(samples["dropped"].sum() / fell.sum()),
        float(count * (load * probability).sum()),
        None if by_rank is None else float(by_rank.max() * ep),
    )


def _bucket_fractions(samples: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """What travelled for others; nothing where all did for themselves."""
    measured = ~np.isnan(samples["residual"])
    choices = samples["choices"][measured]
    if not choices.sum():
        return {}
    return {
        "sent_fraction": float(samples["buckets"][measured].sum() / choices.sum()),
        "residual": float((samples["residual"][measured] * choices).sum() / choices.sum()),
    }


def task_rows(records: RunRecords, steps: Sequence[int], copies: int) -> list[TaskRow]:
    """One for each task, in the order of ranks; each micro-batch is recorded by ``copies`` of them (those of tp and
    cp). Of a step that some ranks did not record a task's loss is that of the others.
    """
    names, place = dict[str, int](), {step: number for number, step in enumerate(steps)}
    sums, counts = np.zeros((0, len(steps))), np.zeros((0, len(steps)))
    ranks: list[dict[int, int]] = []
    for rank in records.ranks():
        for sample in records.table(rank, "task").rows():
            assert isinstance(sample, TaskSample)
            if sample.task not in names:
                names[sample.task] = len(names)
                sums, counts = (np.vstack([values, np.zeros((1, len(steps)))]) for values in (sums, counts))
                ranks.append({})
            task, column = names[sample.task], place.get(sample.step)
            ranks[task][rank] = sample.micro_batches
            if column is not None and sample.loss is not None:
                sums[task, column] += sample.loss * sample.micro_batches
                counts[task, column] += sample.micro_batches
    return [
        TaskRow(
            name,
            sum(ranks[task].values()) // copies,
            ranks[task],
            [float(a / b) if b else None for a, b in zip(sums[task], counts[task], strict=True)],
        )
        for name, task in names.items()
    ]


def _straggler(measured: JoinedSteps, records: RunRecords) -> dict[str, Any]:
    """The busiest rank, its host, by how much, and the share of steps in which it is; no share with one rank."""
    skew = rank_skew(measured)
    rank = measured.ranks[skew.row]
    return {
        "rank_skew_seconds": skew.seconds,
        "slowest_rank": rank,
        "slowest_rank_host": hosts_of(records).get(rank),
        "slowest_rank_share": skew.share if len(measured.ranks) > 1 else None,
        "skew": skew_row(work_seconds(measured), measured.ranks, measured.steps.tolist()),
    }


def hosts_of(records: RunRecords) -> dict[int, str]:
    """The host of each rank that told it."""
    names = {
        rank: [event.data.get("host") for event in records.events(rank) if event.kind == "environment"]
        for rank in records.ranks()
    }
    return {rank: str(names[-1]) for rank, names in names.items() if names and names[-1]}
