"""The process beside the ranks of one host: samples the host, watches for a hang, and beside rank 0 takes orders.

A process of its own, without torch, so that its readings cost no rank the interpreter's lock and its death no rank
anything. It ends when the rank that started it does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from engine import rundir
from engine.launch.hang_watch import HangWatch
from engine.orders import OrderBook, stop_commanded
from engine.progress import PAGE_OF_HOST, Progress
from profilers.records.reader import HOST_PREFIX
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
#: How long its starter waits for its last sample.
_LAST_SECONDS = 5.0
Worker = TypeVar("Worker", "OrderTaker", HangWatch)


class HostProcess:
    """The starter's side: ``with HostProcess(...)`` in one rank of a host. It never fails: a host may go unread.

    ``pids`` has the process of each rank of the run, 0 for those on other hosts. A rank that does not move for
    ``patience_seconds`` hangs.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        pids: Sequence[int],
        interval_seconds: float,
        patience_seconds: float,
        takes_orders: bool,
    ) -> None:
        ranks = ",".join(f"{rank}:{pid}" for rank, pid in enumerate(pids) if pid)
        times = [f"{interval_seconds:g}", f"{patience_seconds:g}"]
        given = [str(folder), host, *times, "orders" if takes_orders else "-", ranks]
        self._command = [sys.executable, "-P", "-m", __name__, *given]
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
    """``FOLDER HOST INTERVAL_SECONDS PATIENCE_SECONDS orders|- RANK:PID,...``: goes on until its input is closed."""
    folder, host, interval, patience, orders, ranks = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the ranks, and with them the input
    pairs = [pair.partition(":") for pair in ranks.split(",")]
    pids = {int(rank): int(pid) for rank, _, pid in pairs}
    page = rundir.PROGRESS if orders == "orders" else PAGE_OF_HOST.format(host)
    with (
        RecordWriter(Path(folder) / rundir.RECORDS, f"{HOST_PREFIX}{host}") as writer,
        Sampler(writer, float(interval)) as sampler,
        _on_page("this run takes no orders", orders == "orders", lambda: OrderTaker(Path(folder))) as taker,
        _on_page(
            "a hang is not seen",
            True,
            lambda: HangWatch(Path(folder), page, len(pids), float(patience), writer),
        ) as watch,
    ):
        writer.event("host", name=host, ranks=sorted(pids))
        sampler.watch([pids.get(rank, 0) for rank in range(max(pids) + 1)])
        starter, look_at = os.getppid(), time.monotonic()
        while os.getppid() == starter and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            if taker is not None:
                taker.pass_on()
            if watch is not None and time.monotonic() >= look_at:
                watch.look()
                look_at = time.monotonic() + _LOOK_SECONDS


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
def _on_page(without: str, wanted: bool, make: Callable[[], Worker]) -> Iterator[Worker | None]:
    """Something that works on the host's page of progress; where there is none, it is said what goes ``without``."""
    try:
        made = make() if wanted else None
    except (OSError, ValueError, struct.error) as error:
        print(f"warning: {without}: {error}", file=sys.stderr)
        made = None
    yield made
    if made is not None:
        made.close()


if __name__ == "__main__":
    main(sys.argv[1:])
