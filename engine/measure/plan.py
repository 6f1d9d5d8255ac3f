"""What a calibration measures, in which order, at which sizes, and how its time is shared. Pure, no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.calibration.table import ARRAYS, Kind
from profilers.model.links import OPERATIONS

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
        """For people."""
        words = {"gemm": f"{self.name} matrix products", "memory": f"memory {self.name}"}
        what = words.get(self.kind, self.name.replace("_", " "))
        return f"{what}, {self.ranks:,} rank{'s' if self.ranks > 1 else ''}"


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


def together(ranks: int) -> list[int]:
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
        for ranks in together(machine.ranks):
            yield "gemm", name, ranks, sizes


def _memory(machine: Machine) -> Iterator[_Drawn]:
    wanted = (
        (16 * _MIB, 256 * _MIB, 1024 * _MIB) if machine.device == "cuda" else (_MIB, 16 * _MIB, 128 * _MIB)
    )
    for name in ARRAYS:
        for ranks in together(machine.ranks):
            most = machine.free_bytes // (ranks * ARRAYS[name])
            yield "memory", name, ranks, tuple(Size(size) for size in wanted if size <= max(most, wanted[0]))


def _transfers(machine: Machine) -> Iterator[_Drawn]:
    if machine.device != "cuda":
        return
    sizes = _by_four(64 * _KIB, 256 * _MIB)
    for direction in ("host_to_device", "device_to_host"):
        for memory in ("pinned", "pageable"):
            for ranks in together(machine.ranks):
                yield "transfer", f"{direction}_{memory}", ranks, sizes


def _collectives(machine: Machine, quick: bool) -> Iterator[_Drawn]:
    largest = {"cuda": (256, 64), "cpu": (64, 4)}[machine.device][quick] * _MIB
    sizes = _by_four(_KIB if quick else 256, largest)
    for ranks in group_sizes(machine.ranks):
        for name in OPERATIONS:
            if name != "send" or ranks == 2:
                yield "collective", name, ranks, tuple(_divisible(size, ranks) for size in sizes)


def _by_four(smallest: int, largest: int) -> tuple[Size, ...]:
    """Each four times the last one; the held-out ones lie between them."""
    count = (largest // smallest).bit_length()
    return tuple(Size(smallest * 2**step, step % 2 == 1) for step in range(count))


def _divisible(size: Size, ranks: int) -> Size:
    """The next size of which every rank has an equal part."""
    unit = ELEMENT_BYTES * ranks
    return Size(-(-size.value // unit) * unit, size.held_out)
