"""A calibration from start to end: choose devices, start ranks, measure curve by curve, keep what is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.launch.measure.plan import CurvePlan, Machine, StoppedError, group_sizes, measure, plan
from engine.launch.measure.rank import Cell
from engine.launch.measure.ranks import Ranks
from engine.run.calibration import fingerprint, store
from engine.run.calibration.fit import fit
from engine.run.calibration.table import Calibration, Curve
from engine.run.devices import selection
from profilers.gpu import detection

#: Ranks on a CPU if nobody says how many; the examples use four.
_USUAL_RANKS, _MOST_USUAL_RANKS = 4, 8
MOST_RANKS = 64
#: Of the memory that is free, what arrays may take.
_MEMORY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Asked:
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
    home: Path, asked: Asked, should_stop: Callable[[], bool], tell: Callable[[Progress], None]
) -> Calibration:
    """Measure, and store each curve as soon as it is done; a stop keeps those.

    Raises:
        InputError: the number of ranks, the device or the home folder cannot be used.
        RankError: a rank died, failed or hung.
    """
    begin = time.monotonic()
    ranks = _ranks(asked)
    chosen = selection.choose(RunConfig().with_values({"device": asked.device}), ranks)
    plans = plan(_machine(ranks, chosen), asked.quick)
    found = Calibration(fingerprint.here(), time.time(), 0.0, complete=False)
    tell(Progress("starting ranks", 0, len(plans)))
    with Ranks(ranks, chosen.kind, chosen.backend, group_sizes(ranks)) as working:
        for number, wanted in enumerate(plans, 1):
            tell(Progress(wanted.label, number - 1, len(plans)))
            try:
                curve = _curve(wanted, working, chosen, should_stop)
            except StoppedError:
                break
            passed, last = time.monotonic() - begin, number == len(plans)
            found = Calibration(found.fingerprint, time.time(), passed, last, (*found.curves, curve))
            store.save(home, found)
    return found


def _ranks(asked: Asked) -> int:
    if asked.ranks is not None:
        if not 1 <= asked.ranks <= MOST_RANKS:
            raise InputError("--ranks", asked.ranks, f"must be from 1 to {MOST_RANKS}")
        return asked.ranks
    found = 0 if asked.device == "cpu" else len(selection.visible(detection.open_library()))
    if found and selection.choose(RunConfig(), found).kind == "cuda":
        return found
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
