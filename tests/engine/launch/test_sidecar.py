"""What stands beside ranks that another launcher started: one process a host, and word from rank 0's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from engine.comm import progress_relay
from engine.comm.progress_relay import Follower, RelayedProgress
from engine.launch.sidecar import Host, HostProcess, ProcessLocation, hosts_of
from engine.run import commands, run_folder
from engine.run.commands import Order, OrderControl, StopControl
from engine.run.ownership import is_running
from engine.run.progress import PAGE_OF_HOST, Progress
from profilers.records.reader import RunRecords
from tests.support.waiting import wait_until


def test_ranks_share_a_host_if_name_and_kernel_are_the_same() -> None:
    told = [("a.site", "1"), ("b", "2"), ("a.site", "1"), ("a.site", "3"), ("a-site-2", "4")]
    ranks = [ProcessLocation(100 + rank, *where) for rank, where in enumerate(told)]
    assert hosts_of(ranks) == [
        Host("a-site", (0, 2), (100, 0, 102, 0, 0)),
        Host("b", (1,), (0, 101, 0, 0, 0)),
        Host("a-site-2", (3,), (0, 0, 0, 103, 0)),
        Host("a-site-2-2", (4,), (0, 0, 0, 0, 104)),
    ]


def beside(folder: Path, takes_orders: bool = False) -> HostProcess:
    return HostProcess(folder, "here", [0, os.getpid()], 0.05, 60.0, takes_orders)


def test_the_process_beside_ranks_samples_until_its_starter_leaves(tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDS).mkdir()
    records = RunRecords(tmp_path / run_folder.RECORDS)
    with beside(tmp_path) as process:
        assert wait_until((tmp_path / run_folder.RECORDS / "host-here.process").exists)
    assert process.pid is not None
    assert not psutil.pid_exists(process.pid)
    assert set(records.table("host-here", "process").column("rank").tolist()) == {1}
    assert len(records.table("host-here", "host")) >= 2
    assert [event.kind for event in records.events("host-here")][-1] == "sampler"  # it ended by itself
    assert records.hosts() == ["host-here"]


def test_it_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDS).mkdir()
    script = (
        "import sys, time; from pathlib import Path; from engine.launch.sidecar import HostProcess\n"
        "with HostProcess(Path(sys.argv[1]), 'here', [0, 1], 0.05, 60.0, False) as it:\n"
        "    print(it.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert wait_until((tmp_path / run_folder.RECORDS / "host-here.host").exists)
        starter.kill()
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_it_cannot_write_or_start_costs_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / run_folder.RECORDS).write_text("not a folder", encoding="utf-8")
    with beside(tmp_path, takes_orders=True) as process:  # there is no page of progress either
        assert process.pid is not None
        assert wait_until(lambda: "takes no orders" in capfd.readouterr().err)
        assert psutil.pid_exists(process.pid)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with beside(tmp_path) as process:
        assert process.pid is None
    assert capfd.readouterr().err.count("host here is not sampled") == 1


def test_it_hands_on_orders_and_a_stop(tmp_path: Path) -> None:
    for part in (run_folder.RECORDS, run_folder.COMMANDS):
        (tmp_path / part).mkdir()
    page = Progress(tmp_path, 2)
    run_folder.write_json(
        tmp_path / run_folder.COMMANDS / "1.json", {"command": "trace", "arguments": {"steps": 4}}
    )
    with beside(tmp_path, takes_orders=True):
        assert wait_until(lambda: page.requested_order() == 1)
        assert not page.stop_requested()
        run_folder.write_json(tmp_path / run_folder.COMMANDS / "2.json", {"command": "stop"})
        assert wait_until(page.stop_requested)
    assert commands.read(tmp_path, 1) == Order(1, "1", "trace", 4)
    page.close()


def test_ranks_end_well_without_it(tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDS).mkdir()
    with beside(tmp_path) as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)


def test_ctrl_c_is_left_to_the_ranks(tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDS).mkdir()
    with beside(tmp_path) as process:
        assert wait_until((tmp_path / run_folder.RECORDS / "host-here.host").exists)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.3)
        assert psutil.Process(process.pid).status() != "zombie"


@pytest.fixture
def server() -> Iterator[dist.TCPStore]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connected(server: dist.TCPStore) -> dist.Store:
    return dist.TCPStore("127.0.0.1", server.port, is_master=False)


def pages(folder: Path, server: dist.TCPStore) -> tuple[RelayedProgress, Progress, Follower]:
    """Rank 0's page, and that of another host with its own folder and follower."""
    other = folder / "other"
    other.mkdir()
    Progress(folder, 2).close()
    page = Progress(other, 2, PAGE_OF_HOST.format("b"))
    return RelayedProgress(folder, connected(server), 1), page, Follower(connected(server), other, page, 1)


def test_other_hosts_hear_of_an_order_before_rank_0_goes_on(tmp_path: Path, server: dist.TCPStore) -> None:
    first, other, follower = pages(tmp_path, server)
    commands.write(tmp_path, Order(1, "x", "trace", 2))
    first.request_order(1)
    controls = OrderControl(first, 0), OrderControl(other, 1)
    assert [control.due(4, busy=False) for control in controls] == [None, None]
    late = threading.Timer(0.3, follower.__enter__)
    began = time.monotonic()
    late.start()
    assert controls[0].due(5, busy=False) is None
    assert time.monotonic() - began > 0.2  # it waited for the other host
    assert other.announced_order() == first.announced_order() == (1, 6)
    assert [control.due(6, busy=False) for control in controls] == [1, 1]
    assert commands.read(tmp_path / "other", 1) == Order(1, "x", "trace", 2)
    first.request_stop()
    stops = StopControl(first, 0), StopControl(other, 1)
    assert not stops[0].should_stop(7)
    assert not stops[0].should_stop(8)
    assert [stop.should_stop(9) for stop in stops] == [True, True]
    first.close()
    follower.__exit__()
    assert not follower._thread.is_alive()
    other.close()


def seconds_of(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_host_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, server: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_relay, "_PATIENCE", timedelta(seconds=0.2))
    first, other, _ = pages(tmp_path, server)
    first.announce_order(1, 6)
    assert 0.15 < seconds_of(first.settle) < 5
    assert min(seconds_of(first.settle) for _ in range(5)) < 0.15
    first.close()
    other.close()


def test_without_its_store_rank_0_announces_nothing(tmp_path: Path) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, other, follower = pages(tmp_path, server)
    first.request_order(1)
    first.request_stop()
    with follower:
        del server
        control, stop = OrderControl(first, 0), StopControl(first, 0)
        assert [control.due(step, busy=False) for step in range(4)] == [None] * 4
        assert not any(stop.should_stop(step) for step in range(4))
        assert wait_until(lambda: not follower._thread.is_alive())
    assert (first.announced_order(), first.end()) == ((0, 0), None)
    first.close()
    other.close()
