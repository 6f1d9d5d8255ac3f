"""An operation is one entry: a made-up one is recorded, measured, read from logs, converted, judged and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from engine.comm import gloo_exchange
from engine.comm.channel import Channel
from engine.compression.interface import Link as CompressionLink
from engine.config.errors import InputError
from engine.launch.measure.plan import Machine, plan
from engine.launch.measure.rank import CALLS, Cell, prepare, seconds_of
from profilers import torch_private
from profilers.analysis.communication import message_seconds_reason
from profilers.collectives import nccl_log, wire_bytes
from profilers.collectives.bandwidth import bus_bandwidth
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records import operations
from profilers.records.operations import (
    OPERATIONS,
    POINT_TO_POINT,
    Operation,
    by_operator,
    calibrated_operations,
    is_message,
    operation_of,
)
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from profilers.verdicts.job import generalize_advice
from tests.support.profilers.uniform_records import named, summary, write
from tests.support.ranks import on_ranks
from tuning.predict.model.hardware import Link
from tuning.predict.simulation.machine import transfer
from workbench.figures.steps import collective_series
from workbench.text import run, words

#: In place of the operation whose operator of torch it takes.
MADE_UP = Operation(
    "shout",
    {"broadcast_": "tensors"},
    other_names=("shouted",),
    nccl_name="Shout",
    bus_factor=lambda ranks: 3.0 * ranks,
    sent=lambda ranks: 0.5,
    gloo_messages=lambda ranks, payload: 7,
    passes=1,
    calibrated=True,
    verdict="shout",
    advice={"dp": "shout less with compression.method", "": "a smaller parallel.tp"},
    foreign_advice="shout less",
)
WITH_IT = (*(one for one in OPERATIONS if one.name != "broadcast"), MADE_UP)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS", WITH_IT)


def test_names_are_used_once_and_an_operator_is_of_one_operation_unless_calls_tell() -> None:
    names = [name for one in OPERATIONS for name in (one.name, *one.other_names)]
    assert len(set(names)) == len(names)
    general = {
        name: [one.name for one in them if one.matches is None] for name, them in by_operator().items()
    }
    assert [name for name, them in general.items() if len(them) != 1] == []


@pytest.mark.usefixtures("made_up")
def test_it_is_known_by_all_its_names_and_calibrated() -> None:
    assert operation_of("shout") is operation_of("shouted") is MADE_UP
    assert "shout" in calibrated_operations()
    (choice,) = nccl_log.choices(["NCCL INFO Shout: 8 Bytes -> Algo RING proto LL time 1.0"])
    assert choice.operation == "shout"


def test_an_end_of_a_message_is_timed_between_two_ranks_alone_and_never_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(4, "cpu", 4, 1 << 30)
    whisper = replace(MADE_UP, name="whisper", other_names=(), verdict=POINT_TO_POINT)
    assert message_seconds_reason(["whisper"]) is None
    monkeypatch.setattr(operations, "OPERATIONS", (*WITH_IT, whisper))
    assert [is_message(name) for name in ("whisper", "shout", "fp32")] == [True, False, False]
    curves = plan(machine, quick=True)
    sizes = {name: {one.ranks for one in curves if one.name == name} for name in ("whisper", "shout")}
    assert sizes == {"whisper": {2}, "shout": {2, 4}}
    assert (message_seconds_reason(["whisper"]) or "").startswith("whisper: a message is recorded from")


@pytest.mark.usefixtures("made_up")
def test_its_bytes_are_converted() -> None:
    assert bus_bandwidth("shout", 100, 2.0, 4) == 3.0 * 4 * 50
    sent = wire_bytes.wire_bytes("shout", "gloo", None, 4, np.array([1000]))
    assert sent is not None
    assert sent.tolist() == [500 + 7 * wire_bytes.GLOO_MESSAGE_BYTES]
    assert wire_bytes.wire_bytes("shout", "nccl", wire_bytes.EXCHANGE, 4, np.array([1000])) is None


@pytest.mark.usefixtures("made_up")
def test_waiting_for_it_is_a_verdict_with_a_name_for_people(tmp_path: Path) -> None:
    late = {"forward": 0.5, "communication_exposed": 0.5}
    write(tmp_path, [late] * 2, [{"operation": "shout", "exposed_seconds": 0.5, "seconds": 0.5}])
    found = named(summary(tmp_path), "exposed_shout")
    assert found.operation == "shout"
    assert found.share == pytest.approx(0.5)
    assert (found.advice, found.knobs) == ("shout less with compression.method", ["compression.method"])
    assert words.bottleneck(found.name, "dp") == "exposed shout (dp)"
    told = named(generalize_advice(summary(tmp_path)), "exposed_shout")
    assert (told.advice, told.knobs) == ("shout less", []), "as a job is told that is not ours"


def test_a_simulation_prices_it_by_its_passes_or_says_that_it_is_not_modelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(alpha_seconds=0.5, bytes_per_second=100.0)
    monkeypatch.setattr(operations, "OPERATIONS", WITH_IT)
    assert transfer("shout", 4, 400.0, link) == (3.0, 1.5)
    tree = replace(MADE_UP, name="tree", tree_messages=lambda ranks: 2)
    silent = replace(MADE_UP, name="silent", priced_at_other_end=True)
    monkeypatch.setattr(operations, "OPERATIONS", (*OPERATIONS, tree, silent))
    assert transfer("tree", 4, 400.0, link) == (3.0, 1.0), "two messages one after the other, not three"
    assert transfer("silent", 4, 400.0, link) == (0.0, 0.0)
    monkeypatch.setattr(operations, "OPERATIONS", (*OPERATIONS, replace(MADE_UP, passes=None)))
    with pytest.raises(InputError, match=r"shout: not modelled.*has no passes"):
        transfer("shout", 4, 400.0, link)
    assert transfer("send", 2, 400.0, link) == (4.0, 0.5)


def measured(rank: int) -> list[tuple[str, int]]:
    """What a calibration's call of the made-up operation leaves in the records."""
    operations.OPERATIONS = WITH_IT
    CALLS["shout"] = lambda payload, channel: lambda: dist.broadcast(payload, 0, group=channel.group)
    cpu = torch.device("cpu")
    channel = Channel(dist.group.WORLD, cpu)  # type: ignore[arg-type]
    cells = [
        Cell(curve.kind, curve.name, curve.ranks, curve.threads, curve.sizes[0].value, calls=3)
        for curve in plan(Machine(2, "cpu", 2, 1 << 30), quick=True)
        if curve.name == "shout"
    ]
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    for cell in cells:
        work = prepare(cell, cpu, channel)
        recorder.start()
        assert seconds_of(work, cell, cpu, channel) > 0
        recorder.stop()
    return [(call.operation, call.bytes) for call in recorder.take()]


def test_every_calibrated_operation_has_its_call() -> None:
    assert set(CALLS) == set(calibrated_operations())


def test_a_calibration_builds_and_runs_its_call() -> None:
    meeting, shout = ("all_reduce", 4), ("shout", 1024)
    assert on_ranks(2, measured) == [[meeting, shout, shout, shout]] * 2


def recorded(rank: int) -> list[tuple[str, int]]:
    operations.OPERATIONS = WITH_IT
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    recorder.start()
    dist.broadcast(torch.zeros(10), 0)
    recorder.stop()
    return [(call.operation, call.bytes) for call in recorder.take()]


def test_its_calls_are_recorded_under_its_name() -> None:
    assert on_ranks(2, recorded) == [[("shout", 40)]] * 2


#: A variant of another operation: its calls are those of the same operator that name the sizes of their parts.
UNEVEN = Operation(
    "uneven_all_to_all",
    {"alltoall_base_": "output"},
    bus_factor=lambda ranks: 0.5,
    sent=lambda ranks: 0.25,
    verdict="uneven_all_to_all",
    advice={"": "more even parts with model.capacity_factor"},
    matches=lambda arguments: bool(arguments["input_split_sizes"]),
)
WITH_VARIANT = (UNEVEN, *OPERATIONS)


def recorded_variants(rank: int) -> list[tuple[str, int]]:
    operations.OPERATIONS = WITH_VARIANT
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    recorder.start()
    try:
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4))
        sizes = [1, 2] if rank == 0 else [2, 4]
        dist.all_to_all_single(torch.zeros(sum(sizes)), torch.zeros(sum(sizes)), sizes, sizes)
        work = dist.all_to_all_single(
            torch.zeros(sum(sizes)), torch.zeros(sum(sizes)), sizes, sizes, async_op=True
        )
        assert work is not None
        work.wait()
    finally:
        recorder.stop()
    return [(call.operation, call.bytes) for call in recorder.take()]


def test_a_variant_is_told_from_other_calls_of_its_operator_by_their_arguments() -> None:
    found = on_ranks(2, recorded_variants)
    assert [calls[0] for calls in found] == [("all_to_all", 16)] * 2
    assert [calls[1:] for calls in found] == [[(UNEVEN.name, size)] * 2 for size in (12, 24)]


#: Told by arguments that torch's dispatcher boxes, or leaves out where they are as usual.
LARGEST = Operation(
    "largest",
    {"allreduce_": "tensors", "_reduce_scatter_base_": "output_tensor"},
    matches=lambda arguments: arguments["reduce_op"] == "MAX",
)
PATIENT = Operation(
    "patient_gather",
    {"_allgather_base_": "output_tensor"},
    matches=lambda arguments: arguments["async_op"] and arguments["timeout"] == -1,
)


def recorded_reductions(rank: int) -> list[str]:
    """The operations of calls with one reduction each, through the dispatcher and by the engine's channel."""
    operations.OPERATIONS = (LARGEST, PATIENT, *OPERATIONS)
    group: Any = dist.group.WORLD
    channel, x, halves = Channel(group, torch.device("cpu")), torch.ones(2), torch.ones(4)
    works: list[Any] = []
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    recorder.start()
    try:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        dist.all_reduce(x, op=dist.ReduceOp(dist.ReduceOp.MAX))
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
        dist.reduce_scatter_tensor(x, halves, op=dist.ReduceOp.MAX)
        torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(x, "max", group.group_name)
        )
        channel.all_reduce(x, "max")
        channel.all_reduce(x)
        dist.all_gather_into_tensor(halves, x)
        works.append(dist.all_gather_into_tensor(halves, x, async_op=True))
        works[0].wait()
    finally:
        recorder.stop()
    return [call.operation for call in recorder.take()]


def test_a_variant_is_told_by_its_reduction_and_by_arguments_that_are_as_usual() -> None:
    foreign = ["largest", "largest", "all_reduce", "largest"]
    own, as_usual, not_waited_for = ["largest", "all_reduce"], ["all_gather"], ["largest", "patient_gather"]
    assert on_ranks(2, recorded_reductions) == [foreign + own + as_usual + not_waited_for] * 2


def test_an_argument_of_an_operator_is_a_group_a_reduction_or_what_python_can_read() -> None:
    found = {
        (str(argument.type), argument.name)
        for name in by_operator()
        if (operator := getattr(torch.ops.c10d, name, None)) is not None
        for argument in torch_private.schema_of(operator.default).arguments
        if "torch.classes" in str(argument.type)
    }
    named = {(kind.rpartition(".")[2], name) for kind, name in found}
    assert named == {("ProcessGroup", "process_group"), ("ReduceOp", "reduce_op")}


def recorded_by_the_engine(rank: int) -> list[list[tuple[str, int]]]:
    """Calls that do not pass torch's dispatcher: of even parts, then of uneven ones."""
    operations.OPERATIONS = WITH_VARIANT
    group: Any = dist.group.WORLD
    channel, link = Channel(group, torch.device("cpu")), CompressionLink(group, torch.device("cpu"))
    recorder = CollectiveRecorder(StepTimer(CpuClock()), {})
    send, receive = (((1, 3), (1, 2)), ((2, 2), (3, 2)))[rank]

    def rows(parts: tuple[int, ...]) -> list[int]:
        return [gloo_exchange.LARGE * part for part in parts]

    into, large = torch.zeros(sum(rows(receive))), torch.zeros(sum(rows(send)))
    found = []
    for exchange in (
        lambda: channel.all_to_all(torch.zeros(4)),
        lambda: channel.all_to_all(torch.zeros(4), list(send), list(receive)),
        lambda: link.all_to_all(torch.zeros_like(large), large).wait(),
        lambda: link.all_to_all(into, large, rows(receive), rows(send)).wait(),
    ):
        recorder.start()
        exchange()
        recorder.stop()
        found.append([(call.operation, call.bytes) for call in recorder.take()])
    return found


def test_the_engines_own_calls_are_told_from_each_other_as_those_through_torch() -> None:
    part = 4 * gloo_exchange.LARGE
    for received, found in zip((3, 5), on_ranks(2, recorded_by_the_engine), strict=True):
        even, uneven, large_even, large_uneven = found
        assert (even, uneven) == ([("all_to_all", 16)], [(UNEVEN.name, 4 * received)])
        assert (large_even, large_uneven) == ([("all_to_all", 4 * part)], [(UNEVEN.name, received * part)])


def test_a_variant_is_summed_up_judged_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS", WITH_VARIANT)
    late = {"forward": 0.5, "communication_exposed": 0.5}
    of_call = {"operation": UNEVEN.name, "bytes": 1000, "seconds": 0.5, "exposed_seconds": 0.5}
    write(tmp_path, [late] * 2, [of_call, of_call | {"operation": "all_to_all", "exposed_seconds": 0.0}])
    found = summary(tmp_path)
    rows = {row.operation: row for row in found.communication}
    assert rows[UNEVEN.name].bus_bandwidth == pytest.approx(0.5 * 1000 / 0.5)
    assert named(found, f"exposed_{UNEVEN.name}").knobs == ["model.capacity_factor"]
    assert f"{UNEVEN.name} · dp" in collective_series(found.communication).labels
    titles = {column.name: column.values for column in run.communication_columns(found.communication)}
    assert UNEVEN.name in titles["operation"]
