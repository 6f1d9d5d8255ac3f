"""The process beside the ranks of one host: samples the host, and beside rank 0 takes orders. No torch.

A process of its own, so that its readings cost no rank the interpreter's lock and its death no rank anything. It ends
when the rank that started it does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from engine import rundir
from engine.orders import OrderBook, stop_commanded
from engine.progress import Progress
from profilers.sampler import Sampler
from profilers.tail import HOST_PREFIX
from profilers.writer import RecordWriter

_POLL_SECONDS = 0.2
#: How long its starter waits for its last sample.
_LAST_SECONDS = 5.0


class HostProcess:
    """The starter's side: ``with HostProcess(...)`` in one rank of a host. It never fails: a host may go unread.

    ``pids`` has the process of each rank of the run, 0 for those on other hosts.
    """

    def __init__(
        self, folder: Path, host: str, pids: Sequence[int], interval_seconds: float, takes_orders: bool
    ) -> None:
        ranks = ",".join(f"{rank}:{pid}" for rank, pid in enumerate(pids) if pid)
        given = [str(folder), host, f"{interval_seconds:g}", "orders" if takes_orders else "-", ranks]
        self._command = [sys.executable, "-m", __name__, *given]
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None if it could not be started."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        ours = str(Path(__file__).parents[2])
        known = [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(known)}
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        except OSError as error:
            print(f"warning: host {self._host} is not sampled and takes no orders: {error}", file=sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(arguments: Sequence[str]) -> None:
    """``FOLDER HOST INTERVAL_SECONDS orders|- RANK:PID,...``: goes on until its input is closed."""
    folder, host, interval, orders, ranks = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the ranks, and with them the input
    pairs = [pair.partition(":") for pair in ranks.split(",")]
    pids = {int(rank): int(pid) for rank, _, pid in pairs}
    with (
        RecordWriter(Path(folder) / rundir.RECORDS, f"{HOST_PREFIX}{host}") as writer,
        Sampler(writer, float(interval)) as sampler,
        _orders(Path(folder), orders == "orders") as taker,
    ):
        writer.event("host", name=host, ranks=sorted(pids))
        sampler.watch([pids.get(rank, 0) for rank in range(max(pids) + 1)])
        starter = os.getppid()
        while os.getppid() == starter and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            if taker is not None:
                taker.pass_on()


class OrderTaker:
    """What the launcher does for its ranks, for those of another launcher: hands on orders and a stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._progress = Progress(folder)
        self._book = OrderBook(folder, self._progress)

    def pass_on(self) -> None:
        """Look for new ones."""
        self._book.pass_on()
        if not self._progress.stop_requested() and stop_commanded(self._folder):
            self._progress.request_stop()

    def close(self) -> None:
        """Lets go of the page."""
        self._progress.close()


@contextlib.contextmanager
def _orders(folder: Path, wanted: bool) -> Iterator[OrderTaker | None]:
    try:
        taker = OrderTaker(folder) if wanted else None
    except (OSError, ValueError, struct.error) as error:
        print(f"warning: this run takes no orders: {error}", file=sys.stderr)
        taker = None
    yield taker
    if taker is not None:
        taker.close()


if __name__ == "__main__":
    main(sys.argv[1:])
