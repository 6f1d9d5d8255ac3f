"""A calibration from start to end: choose devices, start ranks, measure curve by curve, keep what is done."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch.distributed as dist

from engine.config.errors import InputError, RankError
from engine.config.run_config import RunConfig
from engine.launch.measure.plan import CurvePlan, Machine, StoppedError, group_sizes, measure, plan
from engine.launch.measure.rank import Cell, RankFailure, RankSetup, serve
from engine.launch.workers import PRELOAD, Worker, begin
from engine.run.calibration import fingerprint, store
from engine.run.calibration.fit import fit
from engine.run.calibration.table import Calibration, Curve
from engine.run.devices import selection
from profilers.gpu import detection

#: A rank that answers no cell for so long hangs; the first answer includes loading torch.
PATIENCE_SECONDS = 120.0


class Ranks:
    """As many processes as there are ranks; all die with this one."""

    def __init__(self, count: int, device: str, backend: str, groups: list[int]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = (self._store.port, device, backend, tuple(groups), PATIENCE_SECONDS)
        self._workers = [self._start(RankSetup(rank, count, *place)) for rank in range(count)]

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

    def _start(self, seat: RankSetup) -> Worker:
        tasks, rank_end = self._context.Pipe()
        their_lifeline, lifeline = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(seat, rank_end, their_lifeline), daemon=True)
        begin(process)
        rank_end.close()
        their_lifeline.close()
        return Worker(process, tasks, lifeline)

    def _answers(self, workers: list[Worker]) -> list[float]:
        waiting: dict[Any, int] = {worker.tasks: rank for rank, worker in enumerate(workers)}
        answers, deadline = [], time.monotonic() + PATIENCE_SECONDS
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankError(f"rank {min(waiting.values())} gave no answer in {PATIENCE_SECONDS:.0f} s")
            for pipe in ready:
                answers.append(_answer(pipe, waiting.pop(pipe)))
        return answers


def _answer(pipe: Any, rank: int) -> float:
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        raise RankError(f"rank {rank} of the calibration died") from None
    if isinstance(answer, RankFailure):
        raise RankError(f"the calibration failed on {answer.reason}")
    return float(answer)


#: Ranks on a CPU if nobody says how many; the examples use four.
_USUAL_RANKS, _MOST_USUAL_RANKS = 4, 8
MOST_RANKS = 64
#: Of the memory that is free, what arrays may take.
_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """What to measure; ``ranks`` None means one per GPU, or about one per core."""

    ranks: int | None = None
    quick: bool = False
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being measured now, and how much is done."""

    label: str
    done: int
    total: int


def calibrate(
    home: Path, request: CalibrationRequest, should_stop: Callable[[], bool], tell: Callable[[Progress], None]
) -> Calibration:
    """Measure, and store each curve as soon as it is done; a stop keeps those.

    Raises:
        InputError: the number of ranks, the device or the home folder cannot be used.
        RankError: a rank died, failed or hung.
    """
    begin = time.monotonic()
    ranks = _ranks(request)
    chosen = selection.choose(RunConfig().with_values({"device": request.device}), ranks)
    plans = plan(_machine(ranks, chosen), request.quick)
    calibration = Calibration(fingerprint.this_machine(), time.time(), 0.0, complete=False)
    tell(Progress("starting ranks", 0, len(plans)))
    with Ranks(ranks, chosen.kind, chosen.backend, group_sizes(ranks)) as working:
        for number, wanted in enumerate(plans, 1):
            tell(Progress(wanted.label, number - 1, len(plans)))
            try:
                curve = _curve(wanted, working, chosen, should_stop)
            except StoppedError:
                break
            passed, last = time.monotonic() - begin, number == len(plans)
            calibration = Calibration(
                calibration.fingerprint, time.time(), passed, last, (*calibration.curves, curve)
            )
            store.save(home, calibration)
    return calibration


def _ranks(request: CalibrationRequest) -> int:
    if request.ranks is not None:
        if not 1 <= request.ranks <= MOST_RANKS:
            raise InputError("--ranks", request.ranks, f"must be from 1 to {MOST_RANKS}")
        return request.ranks
    gpus = 0 if request.device == "cpu" else len(selection.visible(detection.open_library()))
    if gpus and selection.choose(RunConfig(), gpus).kind == "cuda":
        return gpus
    return min(_MOST_USUAL_RANKS, max(_USUAL_RANKS, psutil.cpu_count(logical=False) or 1))


def _machine(ranks: int, chosen: selection.Devices) -> Machine:
    free = psutil.virtual_memory().available
    if chosen.kind == "cuda":
        free = (detection.open_library().limits(0).memory_free_bytes or 0) * ranks
    return Machine(ranks, chosen.kind, psutil.cpu_count(logical=False) or 1, int(free * _MEMORY_SHARE))


def _curve(
    wanted: CurvePlan, working: Ranks, chosen: selection.Devices, should_stop: Callable[[], bool]
) -> Curve:
    points = measure(wanted, partial(_seconds, wanted, working), should_stop)
    return Curve(
        kind=wanted.kind,
        name=wanted.name,
        ranks=wanted.ranks,
        threads=wanted.threads,
        device=chosen.kind,
        backend=chosen.backend,
        measured_unix=time.time(),
        points=points,
        fit=fit(points) if wanted.kind in ("collective", "transfer") else None,
    )


def _seconds(wanted: CurvePlan, working: Ranks, size: int, calls: int) -> float:
    return working.seconds(Cell(wanted.kind, wanted.name, wanted.ranks, wanted.threads, size, calls))
