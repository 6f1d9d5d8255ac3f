"""How the loss on held-out text fell: against steps, seconds and bytes on the wire. Pure."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from profilers.communication import communication_rows
from profilers.quality_rows import QualityRow
from profilers.step_join import JoinedSteps
from profilers.step_phases import slowest_seconds
from profilers.tail import RunRecords

EVENT = "validation"


def quality_rows(records: RunRecords, steps: JoinedSteps, backend: str) -> list[QualityRow]:
    """One for each time that the loss on held-out text was taken, in the order of steps."""
    if not len(steps.steps):
        return []
    found, before, wire = [], None, 0.0
    seconds = slowest_seconds(steps)
    for step, loss in sorted(_losses(records, steps).items()):
        sent = _sent(records, steps, before, step, backend)
        wire += math.nan if sent is None else sent
        passed = float(seconds[steps.steps < step].sum())
        found.append(QualityRow(step, loss, passed, None if math.isnan(wire) else wire))
        before = step
    return found


def _losses(records: RunRecords, steps: JoinedSteps) -> dict[int, float]:
    """Means over the ranks that computed them; one that does not tell its step was taken at the end."""
    end, told = int(steps.steps[-1]) + 1, defaultdict[int, dict[int, float]](dict)
    for rank in records.ranks():
        for event in records.events(rank):
            loss, step = event.data.get("loss"), event.data.get("step", end)
            is_loss = event.kind == EVENT and isinstance(loss, float | int) and math.isfinite(loss)
            if is_loss and isinstance(step, int) and loss is not None:
                told[step][rank] = loss
    return {step: sum(of.values()) / len(of) for step, of in told.items()}


def _sent(records: RunRecords, steps: JoinedSteps, first: int | None, end: int, backend: str) -> float | None:
    """Bytes that a rank sent in the steps between, by formula, the mean over ranks; None if one is not known.

    Steps that were not recorded in detail count with the mean of those that were, if need be of the whole run's.
    """
    between = steps.between(first, end)
    detailed = between.detailed().steps
    if not len(detailed):
        detailed = steps.detailed().steps
    tables = [records.table(rank, "comm") for rank in steps.ranks]
    rows = communication_rows(tables, detailed, max(1, len(detailed) * len(tables)), backend=backend)
    unrecorded = len(tables) > 1 and not any(map(len, tables))  # an outer loop sends nothing in most steps
    if unrecorded or any(row.wire_bytes is None for row in rows):
        return None
    return len(between.steps) * float(np.sum([row.wire_bytes for row in rows]))
