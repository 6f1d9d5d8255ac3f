"""The clock of CUDA ranks on events that stand for CUDA's: how many are made, and that none is used too early."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config.run_config import RunConfig
from engine.rank.step_log import StepLog
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.steps.clock import CudaClock
from profilers.steps.timer import StepTimer
from profilers.system.memory import cuda_memory
from tests.support.gpu.event_clock import EventClock


class Device:
    """Its events are marks of an ``EventClock``: passed when the test lets the device run, not before."""

    def __init__(self) -> None:
        self.clock, self.made = EventClock(), 0

    def event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        self.made += 1
        return _Event(self.clock)


class _Event:
    def __init__(self, clock: EventClock) -> None:
        self._clock = clock

    def record(self) -> None:
        self._mark = self._clock.mark()

    def query(self) -> bool:
        return self._clock.ready(self._mark)

    def synchronize(self) -> None:
        self._clock.wait(self._mark)

    def elapsed_time(self, end: Any) -> float:
        return 1e3 * self._clock.seconds(self._mark, end._mark)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In place of torch's events."""
    made = Device()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    return made


def test_an_event_is_used_again_once_nobody_holds_its_mark(device: Device) -> None:
    clock = CudaClock()
    first, second = clock.mark(), clock.mark()
    assert device.made == 2
    del first
    third = clock.mark()
    device.clock.run()
    assert device.made == 2
    assert clock.seconds(second, third) == 1.0  # as recorded last, behind the second one
    assert clock.ready(second)
    clock.wait(clock.mark())
    assert device.made == 3 and device.clock.waits == 1


def test_a_run_makes_as_many_events_as_two_steps_have(device: Device, tmp_path: Path) -> None:
    """Steps are written one late: the device passes a step while the next one is made."""
    config = RunConfig().with_values({"train.steps": 8, "train.warmup": 0, "profile.memory": False})
    timer = StepTimer(CudaClock())
    rank = SimpleNamespace(
        config=config, step_config=config, timer=timer,
        recorder=CollectiveRecorder(timer, {}), device=torch.device("cpu"),
        layout=SimpleNamespace(cp=1, world_size=1), groups=SimpleNamespace(coordinates=SimpleNamespace(dp=0)),
        lab_placement=None, actions=None,
        writer=RecordWriter(tmp_path, "rank-0"),
    )  # fmt: skip
    made: list[int] = []
    with StepLog(rank) as log:  # type: ignore[arg-type]
        for step in range(8):
            log.begin_step(step)
            timer.begin(step)
            with timer.phase("forward"), timer.phase("communication_exposed"):
                pass
            times = timer.end()
            device.clock.run()
            log.finish_step(times, 1.0, 1.0)
            made.append(device.made)
            del times
        device.clock.run()
    assert made[2:] == [made[2]] * 6 and made[2] <= 2 * made[0]
    records = RunRecords(tmp_path)
    records.refresh()
    assert [row.step_seconds for row in records.table(0, "step").rows()] == [5.0] * 8


def test_the_allocator_is_asked_for_what_torch_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of ``torch.cuda.memory_stats`` as the installed torch explains them."""
    from tests.support.gpu.fake_cuda.device import memory_stats

    told = memory_stats()
    told["allocated_bytes"]["all"] |= {"current": 3, "peak": 4}
    told["reserved_bytes"]["all"]["current"] = 5
    told["inactive_split_bytes"]["all"]["current"], told["num_alloc_retries"] = 6, 7
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: told)
    assert cuda_memory(torch.device("cuda", 0)) == (3, 4, 5, 6, 7)
