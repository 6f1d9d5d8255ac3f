"""The bubble of actions as they ran: simulated pipelines whose bubble is known, with skewed clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.schedules.actions import Costs
from engine.schedules.registry import plan
from engine.schedules.simulate import simulate
from profilers.analysis.pipeline import pipeline_of
from profilers.model.rows import PipelineRow
from profilers.records.reader import RunRecords
from profilers.records.schema import ActionSample
from profilers.records.writer import RecordWriter
from profilers.steps.clock_offset import ClockOffset, Offset
from tests.support.approximate import about

COSTS = Costs(forward=0.01, backward=0.02, input=0.01, weight=0.01)
BEGIN = 1_700_000_000.0
KINDS = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_v", 2), ("breadth_first", 2)]


def measured(
    folder: Path, kind: str, ranks: int, chunks: int, costs: Costs = COSTS, skews: tuple[float, ...] = ()
) -> tuple[PipelineRow | None, float]:
    """Two steps of a simulated pipeline, and the fraction that the simulation tells."""
    timeline = simulate(plan(kind, ranks, chunks, 4), costs)
    skews = skews or (0.0,) * ranks
    for rank, spans in enumerate(timeline.spans):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(2):
                base = BEGIN + step + skews[rank]
                writer.write_many(
                    [
                        ActionSample(step, a.work, a.stage, a.micro_batch, base + start, end - start)
                        for a, start, end in spans
                    ]
                )
    records = RunRecords(folder)
    clocks = {rank: ClockOffset([Offset(BEGIN, skew, 0.001)]) for rank, skew in enumerate(skews) if skew}
    tables = {rank: records.table(rank, "action") for rank in range(ranks)}
    return pipeline_of(tables, [range(ranks)], np.arange(2), clocks), timeline.bubble_fraction


@pytest.mark.parametrize(("kind", "chunks"), KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bubble_of_every_schedule_is_found(tmp_path: Path, kind: str, chunks: int, ranks: int) -> None:
    row, expected = measured(tmp_path, kind, ranks, chunks)
    assert row is not None
    assert (row.ranks, row.steps) == (ranks, 2)
    assert row.bubble_fraction == about(expected, abs=1e-4)
    assert row.waiting_seconds == about(row.idle_seconds, abs=1e-5)
    assert row.transfer_seconds + row.gap_seconds == about(0.0, abs=1e-5)


def test_transfer_is_told_from_waiting(tmp_path: Path) -> None:
    """GPipe on two ranks: of each rank's idle time two hops are transfer, on the way there and back."""
    hop = 0.004
    row, expected = measured(tmp_path, "gpipe", 2, 1, Costs(0.01, 0.02, hop=hop))
    assert row is not None
    assert row.bubble_fraction == about(expected, abs=1e-4)
    assert row.idle_seconds == about(0.01 + 0.02 + 2 * hop, abs=1e-5)
    assert row.transfer_seconds == about(hop, abs=1e-5)
    assert row.waiting_seconds == about(row.idle_seconds - hop, abs=1e-5)


def test_a_rank_that_still_loads_its_data_waits_for_no_message(tmp_path: Path) -> None:
    """GPipe on two ranks; the second one has its data 5 ms after its first message was there."""
    timeline, late = simulate(plan("gpipe", 2, 1, 4), COSTS), 0.005
    for rank, spans in enumerate(timeline.spans):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for a, start, end in spans:
                begin = BEGIN + start + rank * late
                writer.write(ActionSample(0, a.work, a.stage, a.micro_batch, begin, end - start))
    records, arrived = RunRecords(tmp_path), BEGIN + COSTS.forward
    tables = {rank: records.table(rank, "action") for rank in range(2)}
    ready = {0: np.array([BEGIN - 1.0]), 1: np.array([arrived + late])}
    blind = pipeline_of(tables, [range(2)], np.arange(1), {})
    seen = pipeline_of(tables, [range(2)], np.arange(1), {}, ready)
    assert blind is not None
    assert seen is not None
    assert (blind.idle_seconds, blind.bubble_fraction) == (seen.idle_seconds, seen.bubble_fraction)
    assert blind.transfer_seconds - seen.transfer_seconds == about(late / 2, abs=1e-6)
    assert seen.transfer_seconds == about(0.0, abs=1e-6)
    assert seen.gap_seconds == about(late / 2, abs=1e-6)
    assert seen.waiting_seconds == about(blind.waiting_seconds, abs=1e-6)


def test_clocks_are_aligned_first(tmp_path: Path) -> None:
    row, expected = measured(tmp_path, "1f1b", 2, 1, skews=(0.0, 7.25))
    assert row is not None
    assert row.bubble_fraction == about(expected, abs=1e-4)
    assert row.clock_error_seconds == about(0.001, abs=1e-4)


def test_the_costs_of_actions_are_their_medians(tmp_path: Path) -> None:
    row, _ = measured(tmp_path, "zb_h1", 2, 1, Costs(0.01, 0.03, 0.02, 0.005))
    assert row is not None
    assert row.action_seconds == about({"F": 0.01, "I": 0.02, "W": 0.005}, abs=1e-5)


def test_a_step_that_a_rank_lacks_is_left_out(tmp_path: Path) -> None:
    measured(tmp_path, "1f1b", 2, 1)
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(ActionSample(2, "F", 0, 0, BEGIN + 2, 0.01))
    records = RunRecords(tmp_path)
    tables = {rank: records.table(rank, "action") for rank in range(2)}
    row = pipeline_of(tables, [range(2)], np.arange(3), {})
    assert row is not None
    assert row.steps == 2


def test_without_actions_there_is_no_bubble(tmp_path: Path) -> None:
    tables = {rank: RunRecords(tmp_path).table(rank, "action") for rank in range(2)}
    assert pipeline_of(tables, [range(2)], np.arange(3), {}) is None
    assert pipeline_of(tables, [], np.arange(3), {}) is None
