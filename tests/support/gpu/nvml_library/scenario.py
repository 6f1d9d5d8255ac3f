"""What the library's driver is like: written into the file that it reads at each call, so it can change meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.gpu.nvml_library import build

GIB = 2**30
#: Readings of an H100 in NVML's units. GPU i has ``i`` times ``_OWN`` more, so that none is like another.
_H100: dict[str, float] = {
    "utilization": 90, "memory_utilization": 40, "memory_total": 80 * GIB, "memory_used": 20 * GIB,
    "power_mw": 400_000, "power_limit_mw": 700_000, "temperature": 50, "margin": 37, "slowdown_margin": -2,
    "sm_clock": 1_800, "memory_clock": 2_619, "sm_clock_max": 1_980, "memory_clock_max": 2_619,
    "applications_clock": 1_980, "reasons": 0, "ecc_corrected": 0, "ecc_uncorrected": 0, "links": 18,
    "link_kib_per_second": 18 * 2**20, "pcie_tx_kb": 1_000, "pcie_rx_kb": 2_000, "gpm": 1, "bus": 0x19,
}  # fmt: skip
_OWN = {
    "memory_used": GIB,
    "power_mw": 10_000,
    "temperature": 1,
    "sm_clock": 10,
    "utilization": 1,
    "bus": 0x11,
}
#: GPM metric -> percent, or MiB a second.
METRICS = {2: 80.0, 3: 25.0, 5: 60.0, 10: 45.0, 20: 1_000.0, 21: 2_000.0, 60: 30_000.0, 61: 40_000.0}


class Scenario:
    """A driver of a branch with so many H100s, in a file in ``folder``. Each change is written at once.

    ``branch``: 418 has no GPM, no MIG and old names only; 570 is of today; 700 leaves out what NVIDIA deprecated.
    """

    def __init__(self, folder: Path, gpus: int = 8, branch: int = 570) -> None:
        self._path = folder / "driver.txt"
        self.library = build.folder(branch)
        self._lines: list[str] = []
        self._global = [f"driver {branch}.86.15"]
        self._gpus = [dict(_H100) for _ in range(gpus)]
        self._more: dict[int, list[str]] = {gpu: [] for gpu in range(gpus)}
        for gpu, readings in enumerate(self._gpus):
            for name, each in _OWN.items():
                readings[name] += gpu * each
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that is to find this driver, with all of this process's own."""
        return os.environ | {"LD_LIBRARY_PATH": str(self.library), "NVML_SCENARIO": str(self._path)}

    def uuid(self, gpu: int) -> str:
        """UUID of a GPU, such as "GPU-00000003-...": unlike the others from the first bytes on."""
        return f"GPU-{gpu:08x}-da95-fd7a-ddfd-c6b32cc2f8aa"

    def change(self, gpu: int, **readings: float | None) -> None:
        """Other readings of a GPU, by the names of the library; None for one that is not supported."""
        for name, value in readings.items():
            if value is None:
                self._gpus[gpu].pop(name, None)
            else:
                self._gpus[gpu][name] = value
        self._write()

    def processes(self, gpu: int, *held: tuple[int, int | None], instance: int = 0) -> None:
        """Processes that compute on a GPU, with what they hold there, all of one part of it."""
        lines = [f"process {pid} {'none' if used is None else used} {instance} 0" for pid, used in held]
        self._more[gpu] = [line for line in self._more[gpu] if not line.startswith("process")] + lines
        self._write()

    def divide(self, gpu: int, parts: int, profile: str = "1g.10gb") -> list[str]:
        """Make so many parts (MIG) of a GPU; their UUIDs. Part i is of GPU instance i + 1 and holds i + 1 GiB of 10."""
        uuids = [f"MIG-{gpu:04x}{part:04x}-1111-2222-3333-444444444444" for part in range(parts)]
        self._more[gpu] += [
            f"part {uuid} {profile} {part + 1} 0 {10 * GIB} {(part + 1) * GIB}"
            for part, uuid in enumerate(uuids)
        ]
        self._write()
        return uuids

    def fail(self, function: str, code: int, gpu: int | None = None) -> None:
        """Let a function, by its name in C, answer an error: of one GPU, or always. Code 0 mends it."""
        lines = self._global if gpu is None else self._more[gpu]
        lines[:] = [line for line in lines if not line.startswith(f"fail {function} ")]
        lines += [f"fail {function} {code}"] if code else []
        self._write()

    def _write(self) -> None:
        lines = list(self._global)
        for gpu, readings in enumerate(self._gpus):
            own = [f"{name} {value:.17g}" for name, value in readings.items()]
            own += [f"metric {metric} {value}" for metric, value in METRICS.items()]
            own += ["name NVIDIA H100 80GB HBM3", f"uuid {self.uuid(gpu)}", *self._more[gpu]]
            lines += [f"gpu {gpu} {line}" for line in own]
        fresh = self._path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", "utf-8")
        fresh.replace(self._path)
