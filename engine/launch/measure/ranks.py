"""The ranks of a calibration as the controller sees them: forked from the warm server, asked cell by cell."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

import torch.distributed as dist

from engine.config.errors import RankError
from engine.launch.measure.rank import Cell, Failed, Seat, serve
from engine.launch.workers import PRELOAD, Worker, begin

#: A rank that answers no cell for so long hangs; the first answer includes loading torch.
PATIENCE_SECONDS = 120.0


class Ranks:
    """As many processes as there are ranks; all die with this one."""

    def __init__(self, count: int, device: str, backend: str, groups: list[int]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = (self._store.port, device, backend, tuple(groups), PATIENCE_SECONDS)
        self._workers = [self._start(Seat(rank, count, *place)) for rank in range(count)]

    def __enter__(self) -> Ranks:
        """With every rank ready.

        Raises:
            RankError: a rank died, failed or did not answer.
        """
        try:
            self._answers(self._workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def seconds(self, cell: Cell) -> float:
        """Seconds per call of the slowest rank.

        Raises:
            RankError: a rank died, failed or did not answer.
        """
        members = self._workers[: cell.ranks]
        for worker in members:
            try:
                worker.tasks.send(cell)
            except OSError:
                continue  # its answer is missing then, and told
        return max(self._answers(members))

    def close(self) -> None:
        """End all ranks."""
        for worker in self._workers:
            worker.kill()

    def _start(self, seat: Seat) -> Worker:
        tasks, theirs = self._context.Pipe()
        their_lifeline, lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(seat, theirs, their_lifeline), daemon=True)
        begin(process)
        theirs.close()
        their_lifeline.close()
        return Worker(process, tasks, lifeline)

    def _answers(self, workers: list[Worker]) -> list[float]:
        waiting: dict[Any, int] = {worker.tasks: rank for rank, worker in enumerate(workers)}
        found, deadline = [], time.monotonic() + PATIENCE_SECONDS
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankError(f"rank {min(waiting.values())} gave no answer in {PATIENCE_SECONDS:.0f} s")
            for pipe in ready:
                found.append(_answer(pipe, waiting.pop(pipe)))
        return found


def _answer(pipe: Any, rank: int) -> float:
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        raise RankError(f"rank {rank} of the calibration died") from None
    if isinstance(answer, Failed):
        raise RankError(f"the calibration failed on {answer.reason}")
    return float(answer)
