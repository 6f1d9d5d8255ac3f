"""Reading Flight Recorder dumps.

Recorded: the dumps of three real gloo ranks (tests/data/flight_gloo) and the NCCL entry that PyTorch's tutorial prints
(tests/data/flight_nccl.json). Composed: other NCCL entries, made from that one in the same format.
"""

import json
import os
import pickle
from typing import Any

import pytest

from profilers.collectives.flight_recorder import Dump, DumpError, arm, merge_dumps, parse, take
from tests.support.approximate import about
from tests.support.profilers.flight import (
    CREATED_NS,
    GLOO,
    TUTORIAL,
    gloo_dumps,
    nccl_bytes,
    nccl_dump,
    nccl_entry,
    nccl_message,
)
from tests.support.ranks import on_ranks
from tests.support.waiting import wait_until


def test_what_gloo_ranks_left() -> None:
    """gloo says "scheduled" of all; what has ended is retired. The third call is under way."""
    dump = gloo_dumps()[1]
    assert (dump.version, dump.is_complete) == ("2.10", True)
    assert [
        (entry.operation, entry.description, entry.sequence, entry.dtype, entry.bytes, entry.state)
        for entry in dump.entries
    ] == [
        ("all_reduce", "default_pg", 1, "float32", 48, "completed"),
        ("all_gather", "default_pg", 2, "bfloat16", 72, "completed"),
        ("all_reduce", "tp", 1, "float32", 48, "completed"),
        ("all_reduce", "default_pg", 3, "float32", 20, "scheduled"),
    ]
    assert all(entry.started_unix is None and entry.seconds is None for entry in dump.entries)


def test_json_and_pickle_of_one_process_say_the_same() -> None:
    assert parse((GLOO / "rank-1.pickle").read_bytes()) == parse((GLOO / "rank-1.json").read_bytes())


def test_what_nccl_ranks_left() -> None:
    for data in (json.dumps(TUTORIAL).encode(), pickle.dumps(TUTORIAL, protocol=2)):
        dump = parse(data)
        assert dump.members == {"0": (0, 1)}
        [entry] = dump.entries
        assert (entry.operation, entry.group, entry.bytes, entry.state) == (
            "all_reduce",
            "0",
            48,
            "completed",
        )
        assert entry.completed_unix == about(1724779239.975811724)
        assert (entry.started_unix, entry.seconds, entry.timeout_seconds) == (None, None, 600.0)


def test_entries_come_in_the_order_of_their_calls() -> None:
    dump = nccl_dump([nccl_entry(number) for number in (3, 1, 2)])
    assert [entry.sequence for entry in dump.entries] == [1, 2, 3]


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"state": "scheduled"}, "scheduled"),
        ({"state": "started", "time_discovered_started_ns": CREATED_NS + 5_000_000}, "started"),
        ({"state": "started", "retired": True}, "aborted"),
        ({"time_discovered_completed_ns": CREATED_NS + 700_000_000_000}, "aborted"),
        ({"time_discovered_completed_ns": CREATED_NS + 5_000_000, "retired": False}, "completed"),
    ],
    ids=["scheduled", "started", "retired without an end", "ended by tearing down", "not yet retired"],
)
def test_ends_that_are_missing_or_came_by_an_abort(known: dict[str, Any], state: str) -> None:
    dump = nccl_dump([nccl_entry(1, duration_ms=2.0, **known)])
    assert dump.entries[0].state == state


OPERATIONS: list[tuple[str, str, int]] = [
    ("nccl:_all_gather_base", "all_gather", 192),
    ("nccl:_reduce_scatter_base", "reduce_scatter", 96),
    ("nccl:ALLGATHER_coalesced", "all_gather", 192),
    ("nccl:all_reduce_barrier", "barrier", 96),
    ("nccl:all_to_all", "all_to_all", 96),
    ("nccl:broadcast", "broadcast", 96),
]


@pytest.mark.parametrize(("name", "operation", "size"), OPERATIONS)
def test_names_and_payloads_are_those_of_our_records(name: str, operation: str, size: int) -> None:
    """24 float32 go in and 48 come out; S is what nccl-tests count."""
    dump = nccl_dump([nccl_entry(1, profiling_name=name, input_sizes=[[24]], output_sizes=[[48]])])
    assert (dump.entries[0].operation, dump.entries[0].bytes) == (operation, size)


def test_a_message_has_a_sender_and_a_receiver() -> None:
    dump = nccl_dump(
        [nccl_message("send 0->1", 0), nccl_message("recv 1<-0", 1), nccl_message("recv 0<-1", 2)]
    )
    assert [(entry.operation, entry.pair) for entry in dump.entries] == [
        ("send", (0, 1)),
        ("recv", (0, 1)),
        ("recv", (1, 0)),
    ]


def test_calls_of_an_earlier_run_of_the_process_do_not_count() -> None:
    entries = [nccl_entry(number) for number in (1, 2, 3)]
    since = CREATED_NS / 1e9 + 0.0025
    dump = parse(nccl_bytes(entries), since)
    assert ([entry.sequence for entry in dump.entries], dump.is_complete) == ([3], True)
    assert parse(nccl_bytes(entries[1:]), since).is_complete
    assert not parse(nccl_bytes(entries[2:]), since).is_complete


class Evil:
    """Would run a command when a careless reader loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo loaded",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"junk",
        b'{"entries": []}',
        pickle.dumps([1, 2]),
        pickle.dumps({"version": Evil()}),
        nccl_bytes([{"record_id": 0}]),
        nccl_bytes([nccl_entry(1, profiling_name="nccl:send a->b")]),
        nccl_bytes([nccl_entry(1)], {"0": [0]}, pg_config={"0": 5}),
    ],
)
def test_what_is_no_dump_is_an_error_and_loads_nothing(
    data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DumpError):
        parse(data)
    assert "loaded" not in capfd.readouterr().out


def test_a_newer_format_with_more_in_it_is_read() -> None:
    data = nccl_bytes(
        [nccl_entry(1, colour="blue", input_dtypes=["Float3_new"])], None, version="3.0", more=[1]
    )
    assert parse(data).entries[0].dtype == "float3_new"


def _takes(rank: int) -> Dump:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3, 5))
    dist.broadcast(torch.ones(7, dtype=torch.int64), 1)
    # gloo's own thread retires a call a moment after its caller goes on.
    wait_until(lambda: all(entry.has_ended for entry in parse(*take("gloo")).entries))
    return parse(*take("gloo"))


def test_a_dump_of_living_ranks() -> None:
    for dump in on_ranks(2, _takes):
        last = dump.entries[-2:]
        assert [(entry.operation, entry.bytes, entry.has_ended) for entry in last] == [
            ("all_reduce", 60, True),
            ("broadcast", 56, True),
        ]
        assert last[0].sequence + 1 == last[1].sequence


GLOO_BYTES = (GLOO / "rank-0.json").read_bytes()


def recorders(monkeypatch: pytest.MonkeyPatch, of_nccl: bytes | str | None, generic: bytes) -> None:
    """What a build of torch answers; a build without NCCL has one recorder alone."""
    from torch._C import _distributed_c10d as c10d

    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda: generic)
    if of_nccl is None:
        monkeypatch.delattr(c10d, "_dump_nccl_trace_json", raising=False)
    else:
        monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda: of_nccl, raising=False)


@pytest.mark.parametrize("kind", [bytes, str])
def test_nccl_s_calls_are_in_a_recorder_of_their_own(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Checkpoints go over gloo beside NCCL: calls of both are told, in order of time, under names of their groups."""
    of_nccl = nccl_bytes([nccl_entry(1), nccl_entry(2, state="started")])
    recorders(monkeypatch, of_nccl if kind is bytes else of_nccl.decode(), GLOO_BYTES)
    both = merge_dumps([parse(data) for data in take("nccl")])
    calls = [(entry.created_unix, entry.state) for entry in both.entries]
    assert len(calls) == 2 + len(gloo_dumps()[0].entries)
    assert calls == sorted(calls)
    assert [state for _, state in calls][:2] == ["completed", "started"]
    assert (both.version, both.members, both.is_complete) == (
        "2.5",
        {"0": (0, 1)} | gloo_dumps()[0].members,
        True,
    )
    assert take("gloo") == [GLOO_BYTES], "ranks on CPUs of a build with NCCL ask the other one alone"


def test_a_recorder_that_has_nccl_s_calls_too_tells_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of_nccl = nccl_bytes([nccl_entry(1), nccl_entry(2, state="started")])
    recorders(monkeypatch, of_nccl, of_nccl)
    assert merge_dumps([parse(data) for data in take("nccl")]) == parse(of_nccl)


def test_without_a_recorder_of_nccl_the_other_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders(monkeypatch, None, GLOO_BYTES)
    assert take("nccl") == [GLOO_BYTES]


def test_a_joined_dump_is_whole_if_both_are() -> None:
    lost = nccl_dump([nccl_entry(7)])
    assert not lost.is_complete
    assert not merge_dumps([lost, gloo_dumps()[0]]).is_complete
    with pytest.raises(DumpError):
        merge_dumps([])


def test_recorders_are_on_unless_they_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        monkeypatch.setenv(name, "")
    arm()
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "2000"
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")
    arm()
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == ""
