"""The ranks' own shares of the host, from real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import psutil
import pytest

from profilers.system.host_sources import Reading
from profilers.system.processes import PROCESS_READINGS, LinuxProcess, Processes, PsutilProcess
from tests.support.waiting import wait_until

#: Works, waits twenty times, and tells the kernel's count of its waits; then it waits for good.
WAITS = 20
WORK = f"""
import resource, sys, time
print('ready', flush=True)
sum(range(10_000_000))
for _ in range({WAITS}):
    time.sleep(0.0005)
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, flush=True)
sys.stdin.read()
"""


class Worker(NamedTuple):
    """A process of one thread, and how often it had waited when it last told."""

    process: subprocess.Popen[bytes]
    waits: int

    @property
    def pid(self) -> int:
        return self.process.pid


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A process that has done some work, has waited, and waits."""
    process = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield Worker(process, int(process.stdout.readline()))
    process.kill()
    process.communicate()


def test_a_rank_is_read(worker: Worker) -> None:
    processes = Processes(wall_clock=lambda: 3.0)
    assert processes.records() == []
    processes.watch([os.getpid(), worker.pid])
    mine, theirs = processes.records()
    assert (mine.rank, theirs.rank, theirs.time_unix, theirs.threads) == (0, 1, 3.0, 1)
    assert theirs.cpu_seconds is not None and theirs.cpu_seconds > 0.02
    assert theirs.rss_bytes is not None and 1e6 < theirs.rss_bytes < 1e9
    assert worker.waits >= WAITS
    assert theirs.voluntary_switches is not None
    assert worker.waits <= theirs.voluntary_switches < worker.waits + WAITS
    assert None not in (theirs.involuntary_switches, theirs.read_bytes, theirs.written_bytes)
    assert processes.missing == []
    processes.close()


def test_both_ways_of_reading_agree(worker: Worker) -> None:
    ours, theirs = LinuxProcess(worker.pid), PsutilProcess(worker.pid)

    def agree(reading: Reading) -> bool:
        """One reading between two equal ones: it may still be on its way to its last wait."""
        before, between, after = ours.values(reading), theirs.values(reading), ours.values(reading)
        return before is not None and before == after and before == between

    both = [reading for reading in PROCESS_READINGS if reading.from_proc and reading.from_psutil]
    assert {"status", "storage"} <= {reading.name for reading in both}
    for reading in both:
        assert wait_until(partial(agree, reading)), reading.name
    assert ours.cpu_seconds() == pytest.approx(theirs.cpu_seconds(), abs=0.03)
    ours.close()


def test_a_folder_of_a_process_is_read_like_its_files(worker: Worker) -> None:
    """A made-up reading of its open descriptors; it means this process even when it has ended."""
    descriptors = Reading(
        "descriptors", (), lambda files: (len(files.names("fd")),), lambda process: (process.num_fds(),)
    )
    ours, theirs = LinuxProcess(worker.pid), PsutilProcess(worker.pid)
    assert ours.values(descriptors) == ours.values(descriptors) == theirs.values(descriptors) == (3,)
    worker.process.kill()
    worker.process.wait()
    with pytest.raises(FileNotFoundError):
        ours.values(descriptors)
    me = psutil.Process()
    before = me.num_fds()
    ours.close()
    assert me.num_fds() == before - 1


@pytest.mark.parametrize("opener", [LinuxProcess, PsutilProcess])
def test_a_rank_that_dies_is_told_once_and_the_others_go_on(
    worker: Worker, opener: type[LinuxProcess]
) -> None:
    processes = Processes(opener)
    processes.watch([worker.pid, os.getpid()])
    assert [row.rank for row in processes.records()] == [0, 1]
    worker.process.kill()
    worker.process.wait()
    assert [[row.rank for row in processes.records()] for _ in range(3)] == [[1]] * 3
    assert processes.missing == [f"process: rank 0 (pid {worker.pid}) is gone"]
    processes.close()


class Hidden:
    """A process whose files belong to somebody else."""

    def __init__(self, pid: int) -> None:
        self._real = LinuxProcess(pid)

    def cpu_seconds(self) -> float:
        return self._real.cpu_seconds()

    def values(self, reading: Reading) -> None:
        raise PermissionError(13, f"Permission denied for {reading.name}")

    def close(self) -> None:
        self._real.close()


def test_what_is_hidden_is_none_and_told_once() -> None:
    processes = Processes(Hidden)
    processes.watch([os.getpid()])
    (row,) = [*processes.records(), *processes.records()][1:]
    assert row.cpu_seconds is not None
    assert (row.rss_bytes, row.threads, row.read_bytes) == (None, None, None)
    hidden = [f"process {reading.name}" for reading in PROCESS_READINGS]
    assert [line.split(":")[0] for line in processes.missing] == hidden
