"""The habits of ProcessGroupNCCL that the test backend has, and what the engine's own calls make of them."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel, start_hop
from engine.launch.measure.calibrate import Ranks
from engine.launch.measure.rank import Cell
from engine.parallel.pipeline_messages import PipelineMessages
from engine.run.devices.selection import load_backend
from engine.schedules.registry import plan
from profilers.collectives.recorder import CollectiveRecorder
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.support.gpu import like_nccl
from tests.support.ranks import on_ranks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(like_nccl.why_not() is not None, reason=str(like_nccl.why_not()))
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    like_nccl.build()


def groups(count: int = 1, ranks: int = 2, **settings: float) -> list[dist.ProcessGroup]:
    """So many groups of the backend, with ``LIKE_NCCL_...`` settings."""
    os.environ.update({f"LIKE_NCCL_{name.upper()}": str(value) for name, value in settings.items()})
    backend = load_backend(like_nccl.BACKEND)
    return [dist.new_group(list(range(ranks)), backend=backend) for _ in range(count)]


def numbers(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(4, dtype=dtype) + 10 * rank


def synchronous(rank: int) -> None:
    (group,) = groups()
    channel = Channel(group, CPU)
    assert channel.batches
    raw: Any = group._get_backend(CPU)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = numbers(rank, dtype)
        assert raw.allreduce([x], options) is None
        assert x.tolist() == [10, 12, 14, 16]
    x = numbers(rank)
    channel.all_reduce(x, "max")
    assert x.tolist() == [10, 11, 12, 13]
    assert channel.all_gather(numbers(rank)).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert channel.reduce_scatter(numbers(rank)).tolist() == [[10, 12], [14, 16]][rank]
    for operation, factor in ((dist.ReduceOp.AVG, 0.5), (dist._make_nccl_premul_sum(0.25), 0.25)):  # type: ignore[attr-defined]
        out = torch.empty(2)
        channel.reduce_scatter_into(out, numbers(rank), operation)
        assert out.tolist() == [factor * one for one in [[10, 12], [14, 16]][rank]]
    sizes = [[1, 3], [2, 2]]
    found = channel.all_to_all(numbers(rank), sizes[rank], [row[rank] for row in sizes])
    assert found.tolist() == [[0, 10, 11], [1, 2, 3, 12, 13]][rank]


def test_a_synchronous_call_has_no_work_and_the_channel_needs_none() -> None:
    on_ranks(2, synchronous)


def recorded(rank: int) -> list[tuple[str, bool]]:
    (group,) = groups()
    recorder = CollectiveRecorder(StepTimer(clock_for("cpu")), {})
    recorder.start()
    x = numbers(rank)
    dist.all_reduce(x, group=group)
    dist.barrier(group)
    dist.all_reduce(x, group=group, async_op=True).wait()  # type: ignore[union-attr]
    peer = 1 - rank
    batch = [dist.P2POp(dist.isend, x, peer, group), dist.P2POp(dist.irecv, numbers(rank), peer, group)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    recorder.stop()
    return [(call.operation, call.blocking) for call in recorder.take()]


def test_the_recorder_takes_calls_without_a_work() -> None:
    calls = [("all_reduce", True), ("barrier", True), ("all_reduce", False), ("send", False), ("recv", False)]
    assert on_ranks(2, recorded) == [calls, calls]


def late(rank: int) -> None:
    (group,) = groups(delay_seconds=0.3)
    x, ended = numbers(rank), list[float]()
    work = dist.all_reduce(x, group=group, async_op=True)
    assert work is not None
    work.get_future().add_done_callback(lambda _: ended.append(time.monotonic()))
    assert not work.is_completed()
    assert x.tolist() == numbers(rank).tolist()
    work.wait()
    assert wait_until(lambda: bool(ended))
    assert x.tolist() == [10, 12, 14, 16]


def test_an_asynchronous_call_is_through_later() -> None:
    on_ranks(2, late)


def crossed(rank: int) -> str:
    made = groups(2, patience_seconds=1.0)
    first, second = (Channel(group, CPU) for group in (made if rank == 0 else made[::-1]))
    try:
        first.send(numbers(rank), 1 - rank)
        second.receive(numbers(rank), 1 - rank)
    except dist.DistBackendError as error:
        return str(error).splitlines()[0]
    return "no deadlock"


def test_pairs_that_begin_in_another_order_are_a_deadlock_that_is_named() -> None:
    said = on_ranks(2, crossed)
    for rank, line in enumerate(said):
        assert f"deadlock: rank {rank} waits in its first send to {1 - rank} for pair 0:1 of group" in line
    assert said[0] != said[1]


def connected(rank: int, kind: str, chunks: int) -> None:
    """The messages of a schedule, in its order, over communicators that are made at the first of them."""
    onward, back = (Channel(group, CPU) for group in groups(2, ranks=4, patience_seconds=10.0))
    chosen = plan(kind, 4, chunks, 8)
    messages = PipelineMessages(
        chosen, rank, onward, back, [((4,), torch.float32)] * (chosen.stages - 1), CPU
    )
    messages.connect()
    messages.begin_step()
    messages.close()


@pytest.mark.parametrize(("kind", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb_v", 2)])
def test_a_pipeline_connects_its_pairs_in_one_order(kind: str, chunks: int) -> None:
    on_ranks(4, connected, kind, chunks)


def test_a_calibration_measures_on_it() -> None:
    with Ranks(2, "cpu", like_nccl.BACKEND, [2]) as ranks:
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
            assert ranks.seconds(Cell("collective", name, 2, 1, 4096, 2)) > 0


def opposing(rank: int) -> list[float]:
    (group,) = groups()
    into = torch.empty(4)
    start_hop(Channel(group, CPU), numbers(rank), 1 - rank, into, 1 - rank).wait()
    return into.tolist()


def test_a_batch_of_opposing_messages_is_one_call() -> None:
    assert on_ranks(2, opposing) == [numbers(1).tolist(), numbers(0).tolist()]


def behind(rank: int, eager: int) -> bool:
    """Rank 0 posts a receive from 1, then a message to 2: whether that arrives though 1 has sent nothing."""
    (group,) = groups(ranks=3, eager=eager)
    channel, arrived = Channel(group, CPU), True
    for peer in (1, 2):  # connected in one order
        if rank == 0:
            channel.send(torch.zeros(1), peer).wait()
        elif rank == peer:
            channel.receive(torch.zeros(1), 0).wait()
    if rank == 0:
        messages = [channel.receive(torch.empty(4), 1), channel.send(numbers(0), 2)]
    elif rank == 2:
        messages = [channel.receive(torch.empty(4), 0)]
        arrived = wait_until(lambda: messages[0].is_through, 2.0)
    dist.barrier()
    if rank == 1:
        messages = [channel.send(numbers(1), 0)]
    for message in messages:
        message.wait()
    return arrived


def posted_crosswise(rank: int) -> bool:
    (group,) = groups()
    channel = Channel(group, CPU)
    channel.receive(torch.empty(4), 1 - rank)
    sent = channel.send(numbers(rank), 1 - rank)
    return wait_until(lambda: sent.is_through, 1.0)


def test_messages_of_a_pair_go_in_the_order_in_which_they_were_posted() -> None:
    assert on_ranks(2, posted_crosswise) == [False, False]


@pytest.mark.parametrize(("eager", "arrives"), [(0, True), (1, False)])
def test_only_where_groups_are_bound_to_a_device_a_message_waits_behind_those_of_another_pair(
    eager: int, arrives: bool
) -> None:
    assert on_ranks(3, behind, eager)[2] is arrives


def torn_down(rank: int) -> bool:
    """Whether rank 0 still waits in ``shutdown`` for a call that rank 1 has not made."""
    (group,) = groups()
    raw: Any = group._get_backend(CPU)
    dist.all_reduce(torch.zeros(1), group=group)
    waits = True
    if rank == 0:
        pending: Any = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
        thread = threading.Thread(target=raw.shutdown, daemon=True)
        thread.start()
        thread.join(0.5)
        waits = thread.is_alive()
        raw.abort()
        thread.join(10.0)
        assert not thread.is_alive()
        with pytest.raises(RuntimeError, match="the group was aborted"):
            pending.wait()
    return waits


def test_a_shutdown_waits_for_calls_that_are_pending_and_an_abort_does_not() -> None:
    assert on_ranks(2, torn_down) == [True, True]
