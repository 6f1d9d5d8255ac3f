"""What a measurement of this machine depends on: hardware, driver, libraries, clocks, threads. No torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from profilers.gpu import detection
from profilers.gpu.library import GpuLibrary

_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
#: Variables that change how fast ranks compute or talk, and those among them that do not; scikit-learn sets the last
#: two when it is imported.
_VARIABLES = ("NCCL_", "RCCL_", "GLOO_", "OMP_", "MKL_NUM_THREADS", "KMP_")
_HARMLESS = ("NCCL_DEBUG", "NCCL_HOSTID", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One machine as it is set up. Two that are equal measure the same; gloo is part of torch.

    ``cores`` are those that this process may use; ``gpus`` are named with memory, clocks and power limit; ``network``
    tells of links between ranks that are not this host's own.
    """

    cpu: str
    cores: int
    physical_cores: int | None
    memory_gib: float
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    torch: str | None = None
    nccl: str | None = None
    governor: str | None = None
    variables: tuple[str, ...] = ()
    network: str | None = None

    @property
    def id(self) -> str:
        """Twelve hex digits, the same for equal fingerprints."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """The id and every part, for JSON."""
        parts: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"id": self.id} | parts

    def differences(self, now: Fingerprint) -> list[str]:
        """What another one has otherwise, such as "torch: 2.12.0 -> 2.13.0"."""
        pairs = [(part.name, getattr(self, part.name), getattr(now, part.name)) for part in fields(self)]
        changed = [pair for pair in pairs if pair[1] != pair[2]]
        return [f"{name.replace('_', ' ')}: {_spoken(old)} -> {_spoken(new)}" for name, old, new in changed]


def this_machine(network: str | None = None) -> Fingerprint:
    """This machine's; what cannot be read is None or left out."""
    return _read_machine(network, tuple(sorted(_variables())))


@functools.cache
def _read_machine(network: str | None, variables: tuple[str, ...]) -> Fingerprint:
    library = detection.open_library()
    try:
        return Fingerprint(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            physical_cores=psutil.cpu_count(logical=False),
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
            gpus=tuple(_gpu(library, index) for index in range(library.device_count)),
            driver=library.driver_version,
            torch=_version("torch"),
            nccl=next((version for name in _NCCL_PACKAGES if (version := _version(name))), None),
            governor=_text(_GOVERNOR),
            variables=variables,
            network=network,
        )
    finally:
        library.close()


def _cpu() -> str:
    rows = (_text(Path("/proc/cpuinfo")) or "").splitlines()
    model = next((row.partition(":")[2].strip() for row in rows if row.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def _gpu(library: GpuLibrary, index: int) -> str:
    """Name and what speed depends on. A locked clock cannot be asked for."""
    limits = library.limits(index)
    memory, power = limits.memory_total_bytes, limits.power_limit_watts
    facts = {
        "{:.1f} GiB": None if memory is None else memory / 2**30,
        "SM clock up to {:,.0f} MHz": limits.sm_clock_max_mhz,
        "set to {:,.0f} MHz": limits.sm_clock_set_mhz,
        "limited to {:,.0f} W": power,
    }
    words = [wording.format(value) for wording, value in facts.items() if value is not None]
    return ", ".join([library.name(index) or "unknown GPU", *words])


def _variables() -> Iterator[str]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLES) and not name.startswith(_HARMLESS):
            yield f"{name}={value}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _spoken(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)
