"""What real runs say of a step: phases beside an independent clock, actions beside their lists, axes beside phases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config.run_config import RunConfig
from engine.footprint.footprint import plan_of
from engine.rank import loop
from engine.rank.worker import train_in_group
from engine.run import run_folder
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from tests.support.approximate import about
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {"parallel__dp": 2},
    "tp": {"parallel__tp": 2},
    "1f1b": {"parallel__pp": 2},
    "zb_h1": {"parallel__pp": 2, "schedule__kind": "zb_h1"},
    "zero_3": {"parallel__dp": 2, "parallel__zero_stage": 3},
}
#: Steps of a quarter of a second or so.
LONG: dict[str, Any] = {
    "batch__global_batch": 16,
    "batch__micro_batch": 2,
    "data__sequence_length": 128,
    "train__steps": 8,
    "train__warmup": 1,
    "train__validation_batches": 0,
}


def timed(rank: int, config: RunConfig, folder: Path) -> list[float]:
    """Train as one rank; seconds of each step by the kernel's raw clock, which the profiler does not use."""
    one_step, seconds = loop.one_step, []

    def watched(*arguments: Any) -> tuple[float | None, float]:
        began = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        answer = one_step(*arguments)
        seconds.append(time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - began)
        return answer

    loop.one_step = watched
    train_in_group(rank, config, folder, torch.device("cpu"), None)
    return seconds


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_phases_sum_to_the_step_s_wall_time(name: str, tmp_path: Path) -> None:
    """All that the loop does in a step is in its phases, but for the writing of records at its end."""
    for part in (run_folder.RECORDS, run_folder.LOGS):
        (tmp_path / part).mkdir()
    clocked = on_ranks(2, timed, small(**LONG | LAYOUTS[name]), tmp_path)
    records = RunRecords(tmp_path / run_folder.RECORDS)
    for rank, seconds in enumerate(clocked):
        table = records.table(rank, "step")
        sums = np.sum([table.column(f"{phase}_seconds").filled(0.0) for phase in PHASES], axis=0)
        assert table.column("step").tolist() == list(range(LONG["train__steps"]))
        assert np.median(sums / np.array(seconds)) == about(1.0, rel=0.02)


def run(session: Session, **values: Any) -> RunSummary:
    outcome, summary = execute(session, small(**{"train__steps": 10, "train__warmup": 2} | values))
    assert outcome.good, outcome
    return summary


def of(session: Session, summary: RunSummary) -> RunRecords:
    return RunRecords(session.home / summary.id / run_folder.RECORDS)


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__pp": 2},
        {"parallel__pp": 2, "schedule__kind": "zb_h1"},
        {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2},
    ],
)
def test_actions_are_recorded_in_the_order_of_their_list(session: Session, values: dict[str, Any]) -> None:
    summary = run(session, **values)
    plan = plan_of(small(**values))
    records = of(session, summary)
    for rank, actions in enumerate(plan.actions):
        table = records.table(rank, "action")
        assert len(table) == 10 * len(actions)
        rows: list[Any] = table.part(0, len(actions)).rows()
        assert [(row.work, row.micro_batch, row.stage) for row in rows] == [tuple(a) for a in actions]
        ends = [row.start_unix + row.seconds for row in rows]
        assert all(end <= row.start_unix + 1e-6 for end, row in zip(ends, rows[1:], strict=False))
    row = summary.pipeline
    assert row is not None
    assert (row.ranks, set(row.action_seconds)) == (2, {str(a.work) for a in plan.actions[0]})
    assert 0 < row.bubble_fraction < 1
    parts = row.waiting_seconds + row.transfer_seconds + row.gap_seconds
    assert parts == about(row.idle_seconds, abs=1e-5)
    assert row.formula_fraction is not None
    assert row.formula_fraction < row.bubble_fraction + 0.05


def test_actions_fill_the_phases_that_they_are_part_of(session: Session) -> None:
    records = of(session, run(session, parallel__pp=2))
    for rank in range(2):
        steps, actions = records.table(rank, "step"), records.table(rank, "action")
        phases = sum(steps.column(f"{name}_seconds") for name in ("forward", "backward"))
        assert actions.column("seconds").sum() == about(phases.sum(), rel=1e-3)


@pytest.mark.parametrize("values", [{"parallel__dp": 2}, {"parallel__pp": 2, "profile__collectives": False}])
def test_nothing_is_recorded_where_there_is_nothing_or_it_is_off(
    session: Session, values: dict[str, Any]
) -> None:
    summary = run(session, **values)
    assert len(of(session, summary).table(0, "action")) == 0
    assert summary.pipeline is None
    assert bool(summary.gaps) == ("profile__collectives" not in values)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("values", "axes"),
    [
        ({"parallel__dp": 2, "parallel__tp": 2}, {"dp", "tp"}),
        ({"parallel__dp": 2, "parallel__pp": 2}, {"dp", "pp"}),
        ({"parallel__cp": 2}, {"cp", "dp_cp"}),
        ({"parallel__dp": 2, "parallel__zero_stage": 1}, {"dp"}),
        ({"parallel__dp": 2, "parallel__zero_stage": 3}, {"dp"}),
    ],
)
def test_exposed_seconds_by_axis_sum_to_their_phase(
    session: Session, values: dict[str, Any], axes: set[str]
) -> None:
    summary = run(session, **values)
    exposed = summary.exposed_seconds_by_axis
    assert sum(exposed.values()) == about(summary.phases["communication_exposed"], rel=0.02)
    assert axes <= set(exposed) <= {*axes, "unknown", "world"}
    assert exposed.get("unknown", 0.0) < 0.1 * sum(exposed.values())


def test_spans_cover_each_step_that_was_kept(session: Session) -> None:
    records = of(session, run(session, parallel__dp=2))
    for rank in range(2):
        steps, spans = records.table(rank, "step"), records.table(rank, "span")
        kept = np.unique(np.asarray(spans.column("step")))
        assert {0, 8} <= set(kept.tolist())
        for step in kept:
            covered = spans.column("seconds")[spans.column("step") == step].sum()
            assert covered == about(float(steps.column("step_seconds")[int(step)]), abs=1e-4)


def test_the_straggler_s_host_is_told(session: Session) -> None:
    import socket

    summary = run(session, parallel__dp=2)
    assert summary.slowest_rank_host == socket.gethostname()
    assert summary.slowest_rank_share is not None
    assert 0 < summary.slowest_rank_share <= 1
    assert summary.warmup_steps == 2
