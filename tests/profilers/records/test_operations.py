"""An operation is one entry: a made-up one is recorded, measured, read from logs, converted, judged and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel
from engine.config.errors import InputError
from engine.launch.measure.plan import Machine, plan
from engine.launch.measure.rank import CALLS, Cell, prepare, seconds_of
from profilers.analysis.communication import message_seconds_reason
from profilers.collectives import nccl_log, wire_bytes
from profilers.collectives.bandwidth import bus_bandwidth
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records import operations
from profilers.records.operations import (
    OPERATIONS,
    POINT_TO_POINT,
    Operation,
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
from workbench.text import words

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


def test_names_are_used_once() -> None:
    names = [name for one in OPERATIONS for name in (one.name, *one.other_names)]
    operators = [name for one in OPERATIONS for name in one.operators]
    assert (len(set(names)), len(set(operators))) == (len(names), len(operators))


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
    assert (found.knob, found.knobs) == ("shout less with compression.method", ["compression.method"])
    assert words.bottleneck(found.name, "dp") == "exposed shout (dp)"
    told = named(generalize_advice(summary(tmp_path)), "exposed_shout")
    assert (told.knob, told.knobs) == ("shout less", []), "as a job is told that is not ours"


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
