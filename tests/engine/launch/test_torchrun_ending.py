"""A rank that fails under torchrun, and rank 0, which may be waiting for it where nothing wakes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from engine.launch import torchrun_ending
from engine.launch.ending import ProcessExit
from engine.launch.torchrun_ending import EndingReporter
from engine.run.messages import RankReport
from engine.run.outcome import Ending, RunOutcome
from tests.support.descriptors import beyond_select, open_now
from tests.support.engine.torchrun import tiny
from tests.support.waiting import wait_until

pytestmark = pytest.mark.drawn(5, of="endings under torchrun")

OOM = RankReport(1, Ending.OOM, "MemoryError: none", "backward", ("line",))
LOST = RankReport(0, Ending.COMM_ERROR, "connection closed")


class Rank0:
    """Its part, with what it wrote and how it would have left."""

    def __init__(
        self,
        store: dist.TCPStore,
        monkeypatch: pytest.MonkeyPatch,
        ranks: int = 2,
        gone: Collection[int] = (),
    ) -> None:
        self.written, self.left = list[RunOutcome](), list[int]()

        def dead(silent: Sequence[int]) -> list[ProcessExit]:
            return [ProcessExit(rank, None, "forward", ()) for rank in silent if rank in gone]

        self.words = EndingReporter(connected(store), 0, ranks, self.written.append, dead)
        monkeypatch.setattr(torchrun_ending, "leave", self.left.append)


@pytest.fixture
def store() -> Iterator[dist.TCPStore]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connected(store: dist.TCPStore) -> dist.Store:
    return dist.TCPStore("127.0.0.1", store.port, is_master=False)


def other(store: dist.TCPStore, report: RankReport = OOM) -> threading.Thread:
    """Another rank that fails: it stays until the ending is written."""
    words = EndingReporter(connected(store), report.rank, 2, lambda _: None)
    thread = threading.Thread(target=words.tell, args=(report,), daemon=True)
    thread.start()
    return thread


def test_rank_0_writes_what_another_told_though_its_main_thread_waits(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_0 = Rank0(store, monkeypatch)
    with rank_0.words.listening():
        failed = other(store)
        failed.join(20.0)
        assert not failed.is_alive()
        assert wait_until(lambda: bool(rank_0.left))
    assert rank_0.written == [RunOutcome(Ending.OOM, OOM.reason, 1, "backward", ("line",))]
    assert rank_0.left == [1]


def test_a_lost_connection_waits_for_its_cause(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_0 = Rank0(store, monkeypatch)
    failed = other(store)
    rank_0.words.tell(LOST)
    assert [(one.ending, one.rank) for one in rank_0.written] == [(Ending.OOM, 1)]
    failed.join(20.0)
    assert not failed.is_alive()


def test_without_another_cause_it_is_the_ending(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_0 = Rank0(store, monkeypatch)
    failed = other(store, replace(LOST, rank=1))
    rank_0.words.tell(LOST)
    assert [(one.ending, one.rank) for one in rank_0.written] == [(Ending.COMM_ERROR, 0)]
    failed.join(20.0)


def test_who_lost_a_connection_is_not_to_blame_while_a_rank_is_silent(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on another host, whose processes are not seen here."""
    rank_0 = Rank0(store, monkeypatch)
    rank_0.words.tell(LOST)
    reason = "rank 0 lost a connection, and nothing was heard of rank 1: connection closed"
    assert [(one.ending, one.rank, one.reason) for one in rank_0.written] == [
        (Ending.COMM_ERROR, None, reason)
    ]


def test_a_rank_that_is_gone_without_a_word_is_the_cause(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one that torchrun ended after it, which says so."""
    rank_0 = Rank0(store, monkeypatch, ranks=3, gone=(1, 2))
    connected(store).set("asked/1", "")
    rank_0.words.tell(LOST)
    (one,) = rank_0.written
    assert (one.ending, one.rank, one.reason) == (Ending.CRASHED, 2, "rank 2 died without a report")


def test_a_rank_that_is_asked_to_end_says_so(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(torchrun_ending, "leave", left.append)
    with EndingReporter(connected(store), 1, 2, lambda _: None).listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until(lambda: left == [128 + signal.SIGTERM])
    assert store.check(["asked/1"])


def test_a_request_to_end_after_a_rank_died_is_its_ending(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 may wait for it with NCCL, which tells of no lost connection."""
    rank_0 = Rank0(store, monkeypatch, gone=(1,))
    with rank_0.words.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until(lambda: rank_0.left == [1])
    assert [(one.ending, one.rank) for one in rank_0.written] == [(Ending.CRASHED, 1)]


def test_a_request_to_end_waits_for_a_rank_that_failed(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun asks all ranks to end as soon as one is gone."""
    monkeypatch.setattr(torchrun_ending, "_POLL_SECONDS", 5.0)
    monkeypatch.setattr(torchrun_ending, "_GRACE_SECONDS", 120.0)
    rank_0 = Rank0(store, monkeypatch)
    with rank_0.words.listening():
        failed = other(store)
        os.kill(os.getpid(), signal.SIGTERM)
        failed.join(20.0)
        assert not failed.is_alive()
        assert wait_until(lambda: bool(rank_0.left))
    assert [(one.ending, one.rank) for one in rank_0.written] == [(Ending.OOM, 1)]


def test_a_request_to_end_is_followed_where_nobody_failed(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    rank_0 = Rank0(store, monkeypatch)
    with rank_0.words.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until(lambda: rank_0.left == [128 + signal.SIGTERM])
    assert rank_0.written == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_to_end_is_heard_where_much_is_open(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    left: list[int] = []
    monkeypatch.setattr(torchrun_ending, "leave", left.append)
    words = EndingReporter(connected(store), rank, 2, lambda _: None)
    with beyond_select(), words.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until(lambda: left == [128 + signal.SIGTERM])


@pytest.mark.parametrize("rank", [0, 1])
def test_who_listened_leaves_nothing_open(store: dist.TCPStore, rank: int) -> None:
    words = EndingReporter(connected(store), rank, 2, lambda _: None)
    before = sorted(open_now())
    with words.listening():
        assert sorted(open_now()) != before
    assert wait_until(lambda: sorted(open_now()) == before)
    assert wait_until(lambda: "last words" not in {thread.name for thread in threading.enumerate()})


def test_a_rank_that_failed_leaves_where_the_store_is_gone() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = EndingReporter(connected(store), 1, 2, lambda _: None)
    del store
    words.tell(OOM)


def test_a_report_under_way_is_not_cut_off_by_a_request_to_end(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun asks all ranks to end as soon as one is gone: who was about to tell of it would seem to be gone, too."""
    left: list[int] = []
    monkeypatch.setattr(torchrun_ending, "leave", left.append)
    mine, sent = connected(store), threading.Event()

    class Slow:
        def add(self, key: str, amount: int) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            sent.wait(0.3)
            assert not left
            return int(mine.add(key, amount))

        def __getattr__(self, name: str) -> Any:
            return getattr(mine, name)

    words = EndingReporter(cast("dist.Store", Slow()), 1, 2, lambda _: None)
    with words.listening():
        telling = threading.Thread(target=words.tell, args=(LOST,), daemon=True)
        telling.start()
        assert wait_until(lambda: left == [128 + signal.SIGTERM])
        assert store.check(["report/1"])
        store.set("written", "")
        telling.join(10.0)


BARRIER_FAILS = """
import sys
import torch.distributed as dist

left = int(sys.argv.pop(1))

def gone():
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("Connection closed by peer")

dist.barrier = gone
from engine.launch.torchrun import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("left", [0, 1], ids=["before the first step", "after the last one"])
def test_a_peer_that_dies_beside_the_steps_is_an_ending_too(tmp_path: Path, left: int) -> None:
    config = tmp_path / "config.json"
    config.write_text(tiny(parallel__dp=1, train__steps=2).dumps(), encoding="utf-8")
    command = [sys.executable, "-c", BARRIER_FAILS, str(left), str(config), "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    outcome = json.loads((folder / "status.json").read_text("utf-8"))["outcome"]
    assert (outcome["ending"], outcome["reason"]) == ("comm_error", "RuntimeError: Connection closed by peer")
