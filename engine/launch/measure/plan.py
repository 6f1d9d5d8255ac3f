"""What a calibration measures: which cells, in which order, how often, and how its time is shared. Pure, no torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.config.errors import several
from engine.run.calibration.table import ARRAYS, Kind, Point
from profilers.records.operations import calibrated_operations, is_message

_KIB, _MIB = 2**10, 2**20
#: Bytes of an element of what collectives carry (fp32).
ELEMENT_BYTES = 4
#: Of the time, for each curve: collectives have most sizes and the most noise.
_SHARES: dict[Kind, float] = {"gemm": 1.0, "memory": 0.5, "transfer": 1.0, "collective": 2.0}
_SECONDS = {False: 45.0, True: 8.0}


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a curve; what is held out only checks the fit."""

    value: int
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """A curve to measure: ``ranks`` at the same time, ``threads`` each, within ``seconds``."""

    kind: Kind
    name: str
    ranks: int
    threads: int
    sizes: tuple[Size, ...]
    seconds: float

    @property
    def label(self) -> str:
        """What is measured, in words for people."""
        words = {"gemm": f"{self.name} matrix products", "memory": f"memory {self.name}"}
        name = words.get(self.kind, self.name.replace("_", " "))
        return f"{name}, {several(self.ranks, 'ranks')}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan depends on. ``free_bytes`` is the memory that arrays may take on all ranks together."""

    ranks: int
    device: str
    cores: int
    free_bytes: int


def plan(machine: Machine, quick: bool) -> list[CurvePlan]:
    """The curves in order, the whole within the time that there is."""
    drawn = [*_gemms(machine, quick), *_memory(machine), *_transfers(machine), *_collectives(machine, quick)]
    whole = sum(_SHARES[kind] for kind, *_ in drawn)
    return [
        CurvePlan(
            kind,
            name,
            ranks,
            max(1, machine.cores // ranks),
            sizes,
            _SECONDS[quick] * _SHARES[kind] / whole,
        )
        for kind, name, ranks, sizes in drawn
    ]


_Drawn = tuple[Kind, str, int, tuple[Size, ...]]


def rank_counts(ranks: int) -> list[int]:
    """One rank alone, and all of them."""
    return sorted({1, ranks})


def group_sizes(ranks: int) -> list[int]:
    """Powers of two up to the number of ranks, and that number."""
    powers = [2**power for power in range(1, ranks.bit_length()) if 2**power < ranks]
    return [*powers, ranks] if ranks > 1 else []


def _gemms(machine: Machine, quick: bool) -> Iterator[_Drawn]:
    gpu = machine.device == "cuda"
    edges = (512, 1024, 2048, 4096, 8192) if gpu else (128, 256, 512, 1024, 2048)
    sizes = tuple(Size(edge) for edge in (edges[:-1] if quick else edges))
    for name in ("fp32", "bf16", "tf32") if gpu else ("fp32", "bf16"):
        for ranks in rank_counts(machine.ranks):
            yield "gemm", name, ranks, sizes


def _memory(machine: Machine) -> Iterator[_Drawn]:
    wanted = (
        (16 * _MIB, 256 * _MIB, 1024 * _MIB) if machine.device == "cuda" else (_MIB, 16 * _MIB, 128 * _MIB)
    )
    for name in ARRAYS:
        for ranks in rank_counts(machine.ranks):
            most = machine.free_bytes // (ranks * ARRAYS[name])
            yield "memory", name, ranks, tuple(Size(size) for size in wanted if size <= max(most, wanted[0]))


def _transfers(machine: Machine) -> Iterator[_Drawn]:
    if machine.device != "cuda":
        return
    sizes = _by_four(64 * _KIB, 256 * _MIB)
    for direction in ("host_to_device", "device_to_host"):
        for memory in ("pinned", "pageable"):
            for ranks in rank_counts(machine.ranks):
                yield "transfer", f"{direction}_{memory}", ranks, sizes


def _collectives(machine: Machine, quick: bool) -> Iterator[_Drawn]:
    largest = {"cuda": (256, 64), "cpu": (64, 4)}[machine.device][quick] * _MIB
    sizes = _by_four(_KIB if quick else 256, largest)
    for ranks in group_sizes(machine.ranks):
        for name in calibrated_operations():
            if not is_message(name) or ranks == 2:
                yield "collective", name, ranks, tuple(_divisible(size, ranks) for size in sizes)


def _by_four(smallest: int, largest: int) -> tuple[Size, ...]:
    """Each four times the last one; the held-out ones lie between them."""
    count = (largest // smallest).bit_length()
    return tuple(Size(smallest * 2**step, step % 2 == 1) for step in range(count))


def _divisible(size: Size, ranks: int) -> Size:
    """The next size of which every rank has an equal part."""
    unit = ELEMENT_BYTES * ranks
    return Size(-(-size.value // unit) * unit, size.held_out)


#: Windows of each size, at least and at most; fewer only on a machine that became much slower meanwhile.
_LEAST, _MOST = 3, 20
#: Sizes of which one call takes more than this share of the curve's time are left out, with all that are larger:
#: they double, so the rest then takes less than the whole.
_LARGEST_SHARE = 1 / 12
_LONGEST_WINDOW_SECONDS = 0.05
_MOST_CALLS = 100

#: (size, calls) -> seconds per call on the slowest rank.
Timed = Callable[[int, int], float]


class StoppedError(Exception):
    """Somebody asked to stop; what was measured of the curve is not a curve."""


class Estimate(NamedTuple):
    """A size, and what one call took when it was tried."""

    size: Size
    seconds: float


def measure(plan: CurvePlan, timed: Timed, should_stop: Callable[[], bool]) -> tuple[Point, ...]:
    """The points of a curve, smallest first; every size in each round, in an order drawn anew.

    Raises:
        StoppedError: ``should_stop`` answered yes.
    """
    deadline = time.monotonic() + plan.seconds
    checked = _with_stop_check(timed, should_stop)
    tried = _try_out(plan, checked)
    window = min(_LONGEST_WINDOW_SECONDS, plan.seconds / (len(tried) * 2 * _LEAST))
    seconds: dict[Size, list[float]] = {estimate.size: [] for estimate in tried}
    order = random.Random(plan.label)
    latest = dict(tried)
    for rounds in range(_MOST):
        late = time.monotonic() - deadline
        if late > 0 and (rounds >= _LEAST or (late > plan.seconds / 2 and rounds)):
            break
        for size in order.sample(list(seconds), len(seconds)):
            latest[size] = checked(size.value, _calls(window, latest[size]))
            seconds[size].append(latest[size])
    return tuple(_point(size, windows) for size, windows in seconds.items())


def _try_out(plan: CurvePlan, timed: Timed) -> list[Estimate]:
    """Warm every size up and see how long it takes; the two smallest are measured however long they take."""
    tried: list[Estimate] = []
    for size in plan.sizes:
        timed(size.value, 1)
        seconds = timed(size.value, 1)
        if len(tried) >= 2 and seconds > plan.seconds * _LARGEST_SHARE:
            break
        tried.append(Estimate(size, seconds))
    return tried


def _with_stop_check(timed: Timed, should_stop: Callable[[], bool]) -> Timed:
    def ask(size: int, calls: int) -> float:
        if should_stop():
            raise StoppedError
        return timed(size, calls)

    return ask


def _calls(window: float, seconds: float) -> int:
    """Calls that fill a window."""
    return max(1, min(_MOST_CALLS, int(window / max(seconds, 1e-9))))


def _point(size: Size, windows: list[float]) -> Point:
    low, middle, high = np.percentile(windows, (25, 50, 75)).tolist()
    return Point(size.value, middle, low, high, len(windows), size.held_out)
