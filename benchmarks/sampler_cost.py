"""What sampling the host costs: processor time by part, alone and while ranks keep every core busy.

    python benchmarks/sampler_cost.py [--seconds 10] [--ranks 4] [--save]

The sampler runs as it does beside a run: each 0.1 s, over processes that multiply matrices (busy) or sleep (idle). The
second table compares one reading from files that stay open with the same one by psutil, and /proc/stat of a host with
256 cores, without the kernel's own time for it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import _table
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.system import procfs
from profilers.system.host import Host
from profilers.system.host_sources import READINGS, ProcSource, PsutilSource
from profilers.system.processes import PROCESS_READINGS, LinuxProcess, Processes, PsutilProcess
from profilers.system.sampler import Sampler

_INTERVAL_SECONDS = 0.1
_REPEATS = 500
_WORK = {
    "idle": "import time; time.sleep(600)",
    "busy": "import numpy as n\na = n.random.rand(512, 512)\nwhile True: a @ a",
}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def processes(work: str, count: int) -> Iterator[list[int]]:
    """So many processes that do ``work``."""
    command = [sys.executable, "-c", _WORK[work]]
    started = [subprocess.Popen(command, env=os.environ | _ONE_THREAD) for _ in range(count)]
    try:
        time.sleep(1.0)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def sampled(work: str, ranks: int, seconds: float) -> list[list[str]]:
    """Rows of one run of the sampler: each part, and everything that the thread used."""
    with tempfile.TemporaryDirectory() as folder, processes(work, ranks) as pids:
        with RecordWriter(Path(folder), "launcher") as writer:
            sampler = Sampler(writer, _INTERVAL_SECONDS)
            sampler.watch(pids)
            with sampler:
                time.sleep(seconds)
        (told,) = (e.data for e in RunRecords(Path(folder)).events("launcher") if e.kind == "sampler")
    ticks = seconds / _INTERVAL_SECONDS
    rows = [
        _row(work, part, found["readings"], found["cpu_seconds"], seconds)
        for part, found in told["parts"].items()
        if found["readings"]
    ]
    return [*rows, _row(work, "all, with waiting", ticks, told["cpu_seconds"], seconds)]


def _row(work: str, part: str, readings: float, cpu_seconds: float, seconds: float) -> list[str]:
    each = cpu_seconds / readings * 1e6
    rate, share = readings / seconds, cpu_seconds / seconds * 100
    return [work, part, f"{rate:.1f}", f"{each:,.0f}", f"{share:.3f}"]


def cost(function: Callable[[], object]) -> float:
    """Processor microseconds of one call."""
    function()
    began = time.process_time()
    for _ in range(_REPEATS):
        function()
    return (time.process_time() - began) / _REPEATS * 1e6


def readings(pid: int) -> list[list[str]]:
    """One row a reading: open files, psutil."""
    ours, theirs = ProcSource(), PsutilSource()
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in ("cpu", "network")]
    pairs += [(one.name, partial(ours.values, one), partial(theirs.values, one)) for one in READINGS]
    linux, portable = LinuxProcess(pid), PsutilProcess(pid)
    pairs += [("process cpu_seconds", linux.cpu_seconds, portable.cpu_seconds)]
    pairs += [
        (f"process {one.name}", partial(linux.values, one), partial(portable.values, one))
        for one in PROCESS_READINGS
    ]
    rows = [[name, f"{cost(files):.1f}", f"{cost(psutil):.1f}"] for name, files, psutil in pairs]
    everything = Processes()
    everything.watch([pid] * 4)
    rows += [["host, as records", f"{cost(Host(ours).records):.1f}", f"{cost(Host(theirs).records):.1f}"]]
    rows += [["4 processes, as records", f"{cost(everything.records):.1f}", "—"]]
    return [*rows, ["cpu of 256 cores, parsed", f"{cost(lambda: procfs.cpu_ticks(_stat(256))):.1f}", "—"]]


def _stat(cores: int) -> bytes:
    row = b"%s 10132153 290696 3084719 46828483 16683 0 25195 0 0 0\n"
    return row % b"cpu " + b"".join(row % f"cpu{core}".encode() for core in range(cores)) + b"intr 1\n"


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    sampled("idle", 1, 1.0)  # what a process does once, such as loading NVML's bindings
    rows = [row for work in _WORK for row in sampled(work, given.ranks, given.seconds)]
    header = ["processes", "part", "readings/s", "CPU us each", "% of one core"]
    title = f"Sampling the host each {_INTERVAL_SECONDS} s, {given.ranks} ranks"
    _table.show("sampler_cost", title, header, rows, given.save)
    with processes("idle", 1) as (pid,):
        rows = readings(pid)
    header = ["reading", "open files, CPU us", "psutil, CPU us"]
    _table.show("sampler_readings", "One reading, in a loop", header, rows, given.save)


if __name__ == "__main__":
    main()
