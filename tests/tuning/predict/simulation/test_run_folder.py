"""A configuration played by events: its memory, its traffic, and the run folder that it leaves."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.footprint import footprints, plan_of
from engine.run.run_folder import RECORDS
from engine.schedules import closed_forms
from engine.schedules.actions import Costs
from engine.schedules.registry import SCHEDULES
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES, CommSample
from tests.support.predict.instant import instant, peak_in_flight
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.event_loop import members, simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.run_folder import write_run
from tuning.predict.simulation.simulate import axis_groups, step_of
from tuning.predict.simulation.step_result import SimulatedStep, memory_of
from tuning.predict.traffic.calls import RankCalls
from tuning.predict.traffic.rank import Pipeline, traffic_of
from workbench.figures import base
from workbench.figures import steps as series
from workbench.figures.anatomy import lanes
from workbench.home import runs
from workbench.records.live_snapshot import LiveRun
from workbench.terminal import run as render

WORK = Costs(1e-3, 2e-3, 1e-3, 1e-3)
DEVICE = Accelerator("a device", {}, 0, 0.0)
CLUSTER = Cluster("two nodes", (Group(2, 4, DEVICE, Link(2e-6, 100e9), Link(1e-5, 10e9), "wire"),))


def config(**values: Any) -> RunConfig:
    made = parse({"batch": {"global_batch": 16}}).with_values(
        {key.replace("__", "."): value for key, value in values.items()}
    )
    assert not list(problems(made))
    return made


def played(made: RunConfig, machine: Machine | None = None) -> SimulatedStep:
    stages = plan_of(made).stages
    ranks = layout_of(made).world_size
    return simulate(step_of(made, [WORK] * stages, 1e-3), machine or instant(ranks))


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_memory_in_time_peaks_at_the_footprint(kind: str, recompute: str) -> None:
    chunks = SCHEDULES[kind].chunks[-1] if SCHEDULES[kind].chunks[-1] < 3 else 2
    values = {"schedule__kind": kind, "schedule__chunks": chunks, "memory__recompute": recompute}
    made = config(parallel__pp=2, parallel__tp=2, **values)
    done = played(made)
    assert peak_in_flight(done) == closed_forms.peak_in_flight(kind, 2, chunks, 16 // 2)
    for line, row in zip(memory_of(made, done), footprints(made), strict=True):
        assert line.activation_bytes == row.activation_bytes
        assert line.peak_bytes == row.total_bytes
        assert round(line.activations[-1][1]) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__dp": 4},
        {"parallel__dp": 2, "parallel__tp": 2, "parallel__pp": 2},
        {"parallel__dp": 2, "parallel__cp": 2, "parallel__zero_stage": 1, "parallel__pp": 2},
        {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2, "overlap__prefetch": 1},
        {"parallel__dp": 4, "parallel__ep": 2, "model__experts": 4},
        {"parallel__dp": 2, "overlap__delay": 1},
        {"parallel__cp": 4, "parallel__zero_stage": 3, "parallel__pp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 3, "parallel__pp": 2, "parallel__tp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 1, "overlap__gather_with_optimizer": True},
    ],
    ids=str,
)
def test_what_was_played_is_what_ranks_send(values: dict[str, Any]) -> None:
    """Each collective of the traffic once, with its bytes, and each message of it."""
    made = config(overlap__bucket_mb=0.5, **values)
    layout, done = layout_of(made), played(made, Machine(CLUSTER))
    for place in range(layout.pp):
        found = traffic_of(Pipeline.from_config(made), place * layout.world_size // layout.pp, "nccl")
        assert isinstance(found, RankCalls)
        told = [
            call
            for call in found.calls
            if (call.axis, call.operation[:4]) not in (("pp", "send"), ("pp", "recv"))
        ]
        calls = [one.call for one in done.calls(place * layout.dp)]
        own_rows = next((one.bytes for one in told if one.axis == "ep" and one.dtype != "int64"), 0)
        assert Counter((one.operation, one.axis, one.group_size, one.bytes) for one in calls) == Counter(
            (one.operation, one.axis, one.group_size, one.bytes) for one in told if one.bytes is not None
        ) + Counter((one.operation, one.axis, one.group_size, own_rows) for one in told if one.bytes is None)
        sends = sum(op.to >= 0 for op in done.ops[place])
        assert sends == sum((call.axis, call.operation) == ("pp", "send") for call in found.calls)


def test_groups_of_places_are_those_of_the_layout() -> None:
    """A place is two cp ranks; data ranks are numbered with cp fastest."""
    made = config(parallel__dp=4, parallel__cp=2, parallel__ep=4, parallel__pp=2, model__experts=4)
    layout = layout_of(made)
    for axis, kind in {"ep": "ep", "edp": "edp", "dp_cp": "data", "pp": "pp"}.items():
        for place in range(8):
            group = next(ranks for ranks in layout.groups(kind) if 2 * place in ranks)
            expected = tuple(sorted({rank // 2 for rank in group}))
            assert members(axis_groups(axis, layout), place, layout.dp, layout.pp) == expected, axis


def test_a_run_that_nobody_ran_is_summed_up_like_any_other(home: Path) -> None:
    made = config(parallel__dp=2, parallel__tp=2, parallel__pp=2, overlap__bucket_mb=0.5)
    done = played(made, Machine(CLUSTER, jitter=0.05))
    run, summary = write_run(home, made, done, labels={"study": "mine", "trial": "3"})
    assert summary.world_size == 8
    assert summary.measured_steps == summary.detailed_steps == 3
    assert summary.step_seconds is not None
    assert summary.step_samples[0] == pytest.approx(done.seconds)
    assert len(set(summary.step_samples)) == 3
    assert sum(summary.phases[name] for name in PHASES) == pytest.approx(
        summary.step_seconds.median, rel=0.02
    )
    assert summary.pipeline is not None
    assert summary.pipeline.bubble_fraction == pytest.approx(done.bubble_fraction, rel=0.1)
    assert summary.peak_memory_bytes == max(row.total_bytes for row in footprints(made))
    status = json.loads((home / run / "status.json").read_text(encoding="utf-8"))
    assert status["labels"] == {"simulated": "two nodes", "study": "mine", "trial": "3"}
    assert (status["state"], status["backend"]) == ("ended", "simulated")
    assert any("simulated: no rank ran" in note for note in summary.notes)


def test_show_and_the_page_read_it_and_say_what_it_is(home: Path) -> None:
    made = config(parallel__dp=2, parallel__pp=2)
    run, _ = write_run(home, made, played(made, Machine(CLUSTER)))
    console = Console(width=200, record=True, file=io.StringIO())
    render.print_run(console, runs.load(home / run))
    text = console.export_text()
    assert "simulated on a model of two nodes" in text
    assert "simulated: no rank ran" in text
    assert "bubble" in text
    seen = LiveRun(home / run).read()
    assert sorted(seen.steps) == [0, 1, 2, 3]
    assert [len(columns["step"]) for columns in seen.steps.values()] == [3] * 4


def test_its_step_is_drawn_like_a_real_one(home: Path) -> None:
    made = config(parallel__dp=2, parallel__pp=2)
    done = played(made, Machine(CLUSTER))
    run, _ = write_run(home, made, done)
    records = RunRecords(home / run / RECORDS)
    drawn = lanes.lane_series(records, lanes.kept_steps(records)[0])
    assert drawn.without_spans == []
    assert drawn.milliseconds == pytest.approx(1e3 * done.seconds, rel=1e-3)
    works = [bar for bar in drawn.bars if bar.kind == lanes.ACTION]
    assert sum(bar.spans for bar in works) == 4 * 2 * 4
    assert sum(bar.length for bar in works) == pytest.approx(4 * 4 * 3.0, rel=0.01)
    assert lanes.lanes(drawn).data
    steps = LiveRun(home / run).read().steps
    for drawing in (base.loss(series.loss_series(steps)), base.ranks(series.rank_series(steps))):
        drawing.to_json()


def test_its_records_hold_the_calls_of_every_rank(home: Path) -> None:
    made = config(parallel__dp=2, parallel__pp=2)
    run, _ = write_run(home, made, played(made, Machine(CLUSTER)), steps=2)
    records = RunRecords(home / run / RECORDS)
    assert records.problems == []
    assert records.ranks() == [0, 1, 2, 3]
    for rank in records.ranks():
        found = traffic_of(Pipeline.from_config(made), rank, "nccl")
        assert isinstance(found, RankCalls)
        told = sorted((call.operation, call.axis, call.dtype, call.bytes) for call in found.calls)
        rows = [row for row in records.table(rank, "comm").rows() if isinstance(row, CommSample)]
        first = [row for row in rows if row.step == 0]
        assert sorted((row.operation, row.axis, row.dtype, row.bytes) for row in first) == told
        assert all(row.seconds is not None and row.seconds >= 0 for row in rows)
        assert len(records.table(rank, "action")) == 2 * 2 * 4


def test_a_step_of_another_layout_is_refused(home: Path) -> None:
    done = played(config(parallel__dp=2))
    with pytest.raises(ValueError, match="a step of 2 ranks for a layout of 4"):
        write_run(home, config(parallel__dp=4), done)


def test_what_has_no_formula_is_refused() -> None:
    made = config(parallel__dp=2, compression__method="topk")
    with pytest.raises(InputError, match=r"compression.method=topk"):
        step_of(made, [WORK])
