"""Collectives timed by a device's events, as on a GPU: order, ends that are missing, aborts; and nobody waits.

The calls are real ones of a gloo rank; only the clock is a stand-in, which refuses as CUDA's events do.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config.run_config import RunConfig
from engine.rank.step_log import StepLog
from profilers.collectives.recorder import CollectiveRecorder, collect_background_calls, tell
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.steps.clock import Clock
from profilers.steps.sampling_budget import DetailChoice
from profilers.steps.timer import IssuedCall, StepTimer
from tests.support.gpu.event_clock import EventClock


@pytest.fixture
def group() -> Iterator[None]:
    """A default group of this process alone."""
    patience = timedelta(seconds=10)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=patience)
    yield
    dist.destroy_process_group()


class Rank:
    """As much of a rank as its log needs; its records are read back from ``folder``."""

    def __init__(self, folder: Path, steps: int = 10) -> None:
        self.config = self.step_config = RunConfig().with_values(
            {"train.steps": steps, "train.warmup": 0, "profile.memory": False}
        )
        self.clock = EventClock()
        checked: Clock = self.clock
        self.timer = StepTimer(checked)
        self.recorder = CollectiveRecorder(self.timer, {})
        self.layout = SimpleNamespace(cp=1, world_size=1)
        self.groups = SimpleNamespace(coordinates=SimpleNamespace(dp=0))
        self.device, self.lab_placement, self.actions = torch.device("cpu"), None, None
        self.writer, self._records = RecordWriter(folder, "rank-0"), RunRecords(folder)

    def log(self) -> StepLog:
        return StepLog(self)  # type: ignore[arg-type]

    def step(self, log: StepLog, number: int) -> None:
        """Two collectives in the backward pass: one waited for, one not."""
        log.begin_step(number)
        self.timer.begin(number)
        with self.timer.phase("backward"):
            dist.all_reduce(torch.ones(4))
            work = dist.all_reduce(torch.ones(8), async_op=True)
        work.wait()
        log.finish_step(self.timer.end(), 1.0, 1.0)

    @property
    def steps(self) -> list[Any]:
        return self._written("step")

    @property
    def calls(self) -> list[Any]:
        return self._written("comm")

    def _written(self, stream: str) -> list[Any]:
        self._records.refresh()
        return self._records.table(0, stream).rows()


@pytest.mark.usefixtures("group")
def test_steps_are_written_once_the_device_has_passed_them_and_in_order(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    with rank.log() as log:
        rank.step(log, 0)
        assert rank.steps == []
        rank.clock.run()
        rank.step(log, 1)
        assert [sample.step for sample in rank.steps] == [0]
        rank.clock.run()
        rank.step(log, 2)
        assert [sample.step for sample in rank.steps] == [0, 1]
        assert rank.clock.waits == 0
    assert rank.clock.waits == 1
    assert [sample.step for sample in rank.steps] == [0, 1, 2]
    calls = rank.calls
    assert [(call.step, call.bytes) for call in calls] == [(n, size) for n in range(3) for size in (16, 32)]
    assert all(call.seconds is not None and call.seconds > 0 for call in calls)
    starts = [call.start_unix for call in calls if call.step == 0]
    assert starts == sorted(starts)


@pytest.mark.usefixtures("group")
def test_several_steps_behind_nothing_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    with rank.log() as log:
        for number in range(5):
            rank.step(log, number)
        assert (rank.steps, rank.clock.waits) == ([], 0)
        rank.clock.run()
        rank.step(log, 5)
        assert [sample.step for sample in rank.steps] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("group")
def test_a_call_that_goes_on_beyond_its_step_has_no_end(tmp_path: Path) -> None:
    """Its end is on another stream, which the device has not passed when the step's end is."""
    rank = Rank(tmp_path)
    with rank.log() as log:
        rank.step(log, 0)
        [hidden] = log._records._pending[0][0].issued
        rank.clock.run(leave=(hidden.end[0],))
        rank.step(log, 1)
        waited, hidden_sample = rank.calls
        assert waited.seconds == waited.exposed_seconds > 0
        assert (hidden_sample.seconds, hidden_sample.exposed_seconds) == (None, None)
        assert rank.clock.waits == 0


@pytest.mark.usefixtures("group")
def test_a_call_that_has_not_begun_is_put_where_its_step_began(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    with rank.log() as log:
        rank.step(log, 0)
        [hidden] = log._records._pending[0][0].issued
        rank.clock.run(leave=(hidden.begin, hidden.end[0]))
        rank.step(log, 1)
        late, _ = rank.calls
        assert (late.start_unix, late.seconds) == (rank.steps[0].start_unix, None)


@pytest.mark.usefixtures("group")
def test_after_a_failure_nothing_waits_for_a_device_that_may_never_come(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    with pytest.raises(RuntimeError, match="NCCL communicator was aborted"), rank.log() as log:
        rank.step(log, 0)
        rank.clock.run()
        rank.step(log, 1)
        raise RuntimeError("NCCL communicator was aborted")
    assert rank.clock.waits == 0
    assert [sample.step for sample in rank.steps] == [0]


@pytest.mark.usefixtures("group")
def test_a_collective_that_was_aborted_has_no_end(tmp_path: Path) -> None:
    """The future of its work ends with an error, as c10d's does when a peer is gone."""
    rank = Rank(tmp_path)
    timer, recorder = rank.timer, rank.recorder
    timer.begin(0)
    call = recorder.issue(("allreduce_", {"tensors": [torch.ones(2)]}), dist.group.WORLD)
    future: Any = torch.futures.Future()
    recorder._follow(call, SimpleNamespace(get_future=lambda: future))
    good = recorder.issue(("allreduce_", {"tensors": [torch.ones(2)]}), dist.group.WORLD)
    kept: Any = torch.futures.Future()
    recorder._follow(good, SimpleNamespace(get_future=lambda: kept))
    future.set_exception(RuntimeError("Connection closed by peer"))
    kept.set_result([torch.ones(2)])
    times = timer.end()
    rank.clock.run()
    recorder.write(times.resolve(rank.clock), rank.writer)
    aborted, ended = rank.calls
    assert (aborted.seconds, aborted.bytes) == (None, 8)
    assert ended.seconds is not None


@pytest.mark.usefixtures("group")
def test_steps_without_detail_have_their_time_and_nothing_else(tmp_path: Path) -> None:
    """A call that was issued beside steps belongs to the one that waits for it, if that is recorded in detail."""
    rank = Rank(tmp_path)
    choice = DetailChoice(None)
    choice.wants = lambda step: step in (0, 3)  # type: ignore[method-assign]
    beside: list[list[IssuedCall]] = []
    with StepLog(rank, choice=choice) as log:  # type: ignore[arg-type]
        for step in range(5):
            log.begin_step(step)
            rank.timer.begin(step)
            with rank.timer.phase("backward"):
                dist.all_reduce(torch.ones(4))
                if beside:
                    tell(beside.pop())
                with collect_background_calls() as calls:
                    dist.all_reduce(torch.ones(16), async_op=True).wait()
                beside.append(calls)
            log.finish_step(rank.timer.end(), 1.0, 1.0)
            rank.clock.run()
    assert [sample.backward_seconds is not None for sample in rank.steps] == [True, False, False, True, False]
    assert all(sample.step_seconds > 0 for sample in rank.steps)
    assert sorted((call.step, call.bytes) for call in rank.calls) == [(0, 16), (3, 16), (3, 64)]
