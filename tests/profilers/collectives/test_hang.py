"""Who did not come: from dumps of real gloo ranks, and from NCCL's as composed in tests/support/profilers/flight.py."""

from typing import Any

import pytest

from profilers.collectives import hang
from profilers.collectives.flight_recorder import Dump
from tests.support.profilers.flight import gloo_dumps, nccl_dump, nccl_entry, nccl_message

PAIRS = {"0": [0, 1, 2, 3], "dp": [0, 2], "tp": [2, 3]}


def call(group: str, sequence: int, order: int, **known: Any) -> dict[str, Any]:
    return nccl_entry(sequence, order, process_group=[group, group], **known)


def find(dumps: dict[int, Dump], world_size: int = 2) -> hang.StuckCollective:
    found = hang.find(dumps, {"0": "world"}, world_size)
    assert found is not None
    return found


def test_the_rank_that_real_gloo_ranks_wait_for() -> None:
    found = hang.find(gloo_dumps(), {"0": "dp"}, 3)
    assert (
        str(found) == "all_reduce of 20 bytes, call 3 of group dp: ranks 0, 1 waited, rank 2 did not arrive"
    )


def test_a_rank_that_left_nothing_is_named() -> None:
    dumps = gloo_dumps()
    del dumps[2]
    found = hang.find(dumps, {}, 3)
    assert found is not None
    assert (found.missing, found.silent) == ((2,), (2,))
    assert str(found).endswith("rank 2 did not arrive; rank 2 left no record of its calls")


def test_nothing_under_way() -> None:
    dumps = {rank: nccl_dump([nccl_entry(1), nccl_entry(2)]) for rank in (0, 1)}
    assert hang.find(dumps, {}, 2) is None
    assert hang.find({}, {}, 2) is None
    assert hang.find({0: nccl_dump([]), 1: nccl_dump([])}, {}, 2) is None


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_nccl_ranks_of_which_one_does_not_arrive(state: str) -> None:
    waits = nccl_dump(
        [nccl_entry(1), nccl_entry(2), nccl_entry(3, state=state), nccl_entry(4, state="scheduled")]
    )
    found = find({0: waits, 1: nccl_dump([nccl_entry(1), nccl_entry(2)])})
    assert (found.kind, found.sequence, found.waiting, found.missing) == ("missing", 3, (0,), (1,))


def test_a_gpu_that_does_not_come_to_a_call_that_its_host_made() -> None:
    """A kernel before it does not end: the calls of all hosts are there, and the device has begun it elsewhere."""
    dumps = {
        rank: nccl_dump([nccl_entry(1), nccl_entry(2, state=state)])
        for rank, state in enumerate(("started", "scheduled"))
    }
    found = find(dumps)
    assert (found.kind, found.behind, found.held_up_by) == ("stalled", (1,), (1,))
    assert str(found).endswith("all ranks called it, and the GPU of rank 1 has not come to it")


def test_without_times_nobody_is_behind_a_call_that_all_made() -> None:
    dumps = {rank: nccl_dump([nccl_entry(1), nccl_entry(2, state="scheduled")]) for rank in (0, 1)}
    found = find(dumps)
    assert (found.kind, found.behind, found.held_up_by) == ("stalled", (), ())
    assert str(found).endswith("all ranks arrived, and it did not end on ranks 0, 1")


def test_ranks_that_wait_for_each_other_blame_nobody() -> None:
    """Each misses the other in another group."""
    groups = {"0": [0, 1], "dp": [0, 1], "tp": [0, 1]}
    dumps = {
        0: nccl_dump([call("dp", 1, 0, state="started")], groups),
        1: nccl_dump([call("tp", 1, 0, state="started")], groups),
    }
    found = find(dumps)
    assert (found.kind, found.circular, found.held_up_by) == ("missing", True, ())


def test_a_collective_that_ended_only_because_the_communicator_was_torn_down() -> None:
    """NCCL's abort makes kernels end; the time-out had passed long before."""
    late = nccl_entry(2)["time_created_ns"] + 601_000_000_000
    waits = nccl_dump([nccl_entry(1), nccl_entry(2, time_discovered_completed_ns=late)])
    found = find({0: waits, 1: nccl_dump([nccl_entry(1)])})
    assert (found.sequence, found.waiting, found.missing) == (2, (0,), (1,))


def test_all_arrived_and_it_never_ended() -> None:
    dumps = {rank: nccl_dump([nccl_entry(1), nccl_entry(2, state="started")]) for rank in (0, 1)}
    assert (
        str(find(dumps))
        == "all_reduce of 48 bytes, call 2 of group world: all ranks arrived, and it did not end on ranks 0, 1"
    )


def test_ranks_that_called_different_things() -> None:
    """The program of PyTorch's tutorial: rank 0 reduces a tensor of [4, 5] that rank 1 does not know of."""
    extra = nccl_entry(3, state="started", input_sizes=[[4, 5]], output_sizes=[[4, 5]])
    first = nccl_dump([nccl_entry(1), nccl_entry(2), extra, nccl_entry(4, state="scheduled")])
    other = nccl_dump([nccl_entry(1), nccl_entry(2), nccl_entry(3, state="started")])
    found = find({0: first, 1: other})
    assert found.kind == "mismatch"
    assert found.sequence == 3
    assert "rank 0 all_reduce of 80 bytes; rank 1 all_reduce of 48 bytes" in str(found)


def test_the_victim_of_a_victim_is_not_blamed() -> None:
    """Rank 0 waits in dp for rank 2, which waits in tp for rank 3, which is the one that does nothing."""
    dumps = {
        0: nccl_dump([call("0", 1, 0), call("dp", 1, 1, state="started")], PAIRS),
        1: nccl_dump([call("0", 1, 0)], PAIRS),
        2: nccl_dump([call("0", 1, 0), call("tp", 1, 1, state="started")], PAIRS),
        3: nccl_dump([call("0", 1, 0)], PAIRS),
    }
    found = find(dumps, 4)
    assert (found.group, found.waiting, found.missing) == ("tp", (2,), (3,))


def test_what_left_the_ring_buffer_was_called() -> None:
    """Rank 1 is far ahead: its buffer begins after the call that rank 0 is in."""
    behind = nccl_dump([nccl_entry(1), nccl_entry(2, state="started")])
    ahead = nccl_dump([nccl_entry(number, state="completed") for number in (9, 10)])
    found = find({0: behind, 1: ahead})
    assert (found.kind, found.missing) == ("stalled", ())


def test_a_message_without_its_other_side() -> None:
    """Ranks of a group are counted within it: 0 and 1 of tp are ranks 2 and 3."""
    known: dict[str, Any] = {"process_group": ["tp", "tp"]}
    sends = [
        nccl_message("send 0->1", 0, **known),
        nccl_message("send 0->1", 1, state="scheduled", **known),
    ]
    dumps = {
        2: nccl_dump(sends, PAIRS),
        3: nccl_dump([nccl_message("recv 1<-0", 0, **known)], PAIRS),
    }
    found = find(dumps, 4)
    assert (found.operation, found.sequence, found.waiting, found.missing) == ("send", 2, (2,), (3,))


def test_messages_of_a_batch_never_end_for_torch_and_are_not_taken_for_stuck() -> None:
    """pytorch/pytorch#137969: sends and receives of a batch stay "scheduled" for ever."""
    dumps = {
        0: nccl_dump([nccl_message("send 0->1", 0, state="scheduled"), nccl_message("coalesced", 1)]),
        1: nccl_dump([nccl_message("recv 1<-0", 0, state="scheduled"), nccl_message("coalesced", 1)]),
    }
    assert hang.find(dumps, {}, 2) is None


def test_messages_are_not_counted_once_the_buffer_has_lost_some() -> None:
    lost = nccl_dump([nccl_message("send 0->1", 5, state="scheduled")])
    assert hang.find({0: lost, 1: nccl_dump([])}, {}, 2) is None
