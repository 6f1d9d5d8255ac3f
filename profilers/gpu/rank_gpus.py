"""Which GPU each rank computes on: what CUDA told the rank of its device, found again in what the driver told.

Numbers are never compared: CUDA orders devices in its own way, and CUDA_VISIBLE_DEVICES hides and reorders them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from profilers.records.reader import RunRecords
from profilers.records.table import Table

#: The event in which a sampler tells the GPUs that it reads; a rank tells its own in its environment.
EVENT = "gpus"
_Mask = np.ndarray[Any, np.dtype[np.bool_]]


class RankGpu(NamedTuple):
    """A GPU by the process that samples it and the driver's number there, and the ranks that compute on it."""

    process: str
    gpu: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankGpus:
    """``unknown`` says of each rank whose GPU could not be found why; ranks on the CPU are in neither.

    ``energy_of`` names, by process and number, the GPU that tells the energy of another one, its own included: the
    first of a card's two dies.
    """

    gpus: list[RankGpu]
    unknown: dict[int, str]
    energy_of: dict[tuple[str, int], int] = field(default_factory=dict)

    def find_ranks(self, process: str, gpu: int) -> list[int] | None:
        """The ranks on a GPU; None if some rank may be there without being known."""
        ranks = [rank for rank_gpu in self.gpus if rank_gpu[:2] == (process, gpu) for rank in rank_gpu.ranks]
        return ranks if ranks or not self.unknown else None

    @property
    def counters(self) -> list[tuple[str, int]]:
        """Process and number of the GPUs whose energy is that of all ranks, each once."""
        used = [(process, self.energy_of.get((process, gpu), gpu)) for process, gpu, _ in self.gpus]
        return list(dict.fromkeys(used))

    @property
    def reason(self) -> str | None:
        """Why not all ranks' GPUs are known, in one line; None if they are."""
        if not self.unknown:
            return None
        ranks = ", ".join(f"{rank:,}" for rank in sorted(self.unknown))
        whose = f"rank {ranks} computes" if len(self.unknown) == 1 else f"ranks {ranks} compute"
        return f"it is not known which GPU {whose} on: {self.unknown[min(self.unknown)]}"


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """A GPU that ranks compute on, and the readings of all GPUs of its host."""

    gpu: int
    ranks: tuple[int, ...]
    table: Table

    def span_mask(self, start: float, end: float) -> _Mask:
        """Rows of this GPU between two wall-clock times."""
        times = self.table.column("time_unix")
        return self.gpu_mask & (times >= start).filled(False) & (times <= end).filled(False)

    @property
    def gpu_mask(self) -> _Mask:
        """Rows of this GPU."""
        return np.asarray((self.table.column("gpu") == self.gpu).filled(False), dtype=bool)


def cuda_identity(properties: Any, hip: bool = False) -> dict[str, str | None]:
    """What ``torch.cuda.get_device_properties`` tells of a device, spelled as the driver does; for ``environment``.

    HIP's UUID is the text of 16 hex digits, and torch prints the 16 bytes of any UUID as 32 of them.
    """
    uuid = getattr(properties, "uuid", None)
    if hip and uuid is not None:
        with contextlib.suppress(ValueError):
            uuid = bytes.fromhex(str(uuid).replace("-", "")).decode("ascii")
    numbers: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return {
        "gpu_uuid": None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
        "gpu_pci_bus_id": None if None in numbers else pci_bus_id(*numbers),
    }


def pci_bus_id(domain: int, bus: int, device: int) -> str:
    """As nvidia-smi prints it: "00000000:3B:00.0"."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def gpus_of_ranks(records: RunRecords) -> RankGpus:
    """The GPU of each rank that computes on one."""
    listed = [
        (process, event.data.get("host"), gpu)
        for process in records.hosts()
        for event in [event for event in records.events(process) if event.kind == EVENT][-1:]
        for gpu in event.data.get("gpus", ())
    ]
    ranks: dict[tuple[str, int], list[int]] = {}
    unknown: dict[int, str] = {}
    for rank in records.ranks():
        environment = _environment(records, rank)
        if environment.get("device", "cpu") == "cpu":
            continue
        place = _place(environment, listed)
        if isinstance(place, str):
            unknown[rank] = place
        else:
            ranks.setdefault(place, []).append(rank)
    return RankGpus(
        [RankGpu(*place, tuple(those)) for place, those in sorted(ranks.items())],
        unknown,
        {(process, gpu["gpu"]): gpu["energy_of"] for process, _, gpu in listed if "energy_of" in gpu},
    )


def _environment(records: RunRecords, rank: int) -> dict[str, Any]:
    environments = [event.data for event in records.events(rank) if event.kind == "environment"]
    return environments[-1] if environments else {}


def _place(
    environment: dict[str, Any], listed: list[tuple[str, Any, dict[str, Any]]]
) -> tuple[str, int] | str:
    """By the UUID; else by the bus on the same host, since a part of a GPU (MIG) has a UUID of its own."""
    uuid, bus = environment.get("gpu_uuid"), environment.get("gpu_pci_bus_id")
    if uuid is None and bus is None:
        return "the rank did not record it"
    by_bus = None
    for process, host, gpu in listed:
        if uuid is not None and gpu.get("uuid") == uuid:
            return process, int(gpu["gpu"])
        if bus is not None and (gpu.get("pci_bus_id"), host) == (bus, environment.get("host")):
            by_bus = process, int(gpu["gpu"])
    if by_bus is None:
        return f"no driver that was read shows {uuid or bus}" if listed else "no driver told its GPUs"
    return by_bus
