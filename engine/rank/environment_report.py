"""What a rank reports about its environment: clocks, interfaces, NCCL, and whether variables took effect.

How far each host's clock is from that of rank 0's host is asked outside the measured steps. A lab's interfaces are
counted around the measured steps, with all ranks at rest, and in between. In torch's build for ROCm NCCL is RCCL,
which torch calls "nccl" too.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.comm import host_values
from engine.config import environment
from engine.config.environment import VARIABLES, Environment
from engine.run import netns, processes
from engine.run.messages import CountedInterface, LabPlacement
from profilers import torch_private
from profilers.collectives.nccl_log import Proof, choices, proof, settings
from profilers.collectives.recorder import pause_recording
from profilers.model.environment import ASKED, NO, PROOF, UNTOLD, YES, EnvironmentRow
from profilers.records.schema import NetworkSample
from profilers.records.writer import RecordWriter
from profilers.steps.clock_offset import Exchange, Offset, estimate
from profilers.system import procfs
from profilers.system.procfs import ProcFile

#: Messages to each host; the one that was quickest counts.
ROUNDS = 24
_BOOT = Path("/proc/sys/kernel/random/boot_id")

Now = Callable[[], float]


def kernel_boot_id() -> str:
    """Names the running kernel, whose clock all its processes share; in containers and in the lab, too."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return f"{time.time_ns()}-{id(_BOOT)}"  # not known: a clock of its own


class HostClocks:
    """One rank's part; all ranks of the default group make the same calls.

    One rank of each host exchanges messages with rank 0, host after host, and tells the others. ``kernel`` and ``now``
    are this rank's host and its clock.
    """

    def __init__(self, device: torch.device, kernel: str | None = None, now: Now = time.time) -> None:
        self._device, self._now = device, now
        self._rank, size = dist.get_rank(), dist.get_world_size()
        self._kernels: list[str] = [kernel or kernel_boot_id()] * size
        if size > 1:
            with pause_recording():
                dist.all_gather_object(self._kernels, kernel or kernel_boot_id())

    @property
    def several(self) -> bool:
        """Whether ranks have more than one clock."""
        return len(set(self._kernels)) > 1

    def measure(self) -> Offset:
        """This rank's clock against rank 0's."""
        offsets: list[Offset | None] = [None] * len(self._kernels)
        with pause_recording():
            own_offset = self._exchange()
            if self.several:
                dist.all_gather_object(offsets, own_offset)
        first = self._kernels.index(self._kernels[self._rank])
        return offsets[first] or Offset(self._now(), 0.0, 0.0)

    def _exchange(self) -> Offset | None:
        """What this rank found out, if it speaks for its host."""
        first_ranks = [self._kernels.index(kernel) for kernel in dict.fromkeys(self._kernels)]
        own_offset = None
        for asker in first_ranks[1:]:
            if self._rank == asker:
                own_offset = estimate([self._ask() for _ in range(ROUNDS)])
            elif self._rank == 0:
                for _ in range(ROUNDS):
                    self._answer(asker)
        return own_offset

    def _ask(self) -> Exchange:
        asked_unix = self._now()
        dist.send(self._tensor(0.0, 0.0), 0)
        received_unix, answered = self._receive(0)
        return Exchange(asked_unix, received_unix, answered, self._now())

    def _answer(self, asker: int) -> None:
        self._receive(asker)
        received_unix = self._now()
        dist.send(self._tensor(received_unix, self._now()), asker)

    def _receive(self, source: int) -> list[float]:
        into = self._tensor(0.0, 0.0)
        dist.recv(into, source)
        values: list[float] = host_values.numbers(into)
        return values

    def _tensor(self, *values: float) -> Any:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def report_offset(clocks: HostClocks, writer: RecordWriter) -> None:
    """Measure, and write what came out."""
    writer.event("clock", **clocks.measure()._asdict())


_INTERVAL_SECONDS = 0.1
_HERE = Path("/proc/thread-self/net/dev")


class InterfaceLog:
    """Written by one rank of each host, its island's link by one of the island; outside the lab nothing is read, since
    others use the interfaces, too. What each is held to and who uses it is told once, as the event ``interfaces``.
    """

    def __init__(self, lab_placement: LabPlacement | None, writer: RecordWriter) -> None:
        self._inside, self._writer = lab_placement is not None, writer
        self._sources = (
            []
            if lab_placement is None
            else [(counted, _open_counters(counted)) for counted in lab_placement.interfaces]
        )
        self._last = 0.0
        if self._sources:
            interfaces = {
                counted.name: {"rate_mbit": counted.rate_mbit, "ranks": counted.ranks}
                for counted, _ in self._sources
            }
            writer.event("interfaces", interfaces=interfaces)

    def read_at_rest(self) -> None:
        """Read while no rank has anything to send; all ranks call it between the same two steps."""
        if self._inside:
            with pause_recording():
                dist.barrier()
                self.read()
                dist.barrier()

    def now_and_then(self) -> None:
        """Read if the last time is a while ago."""
        if time.monotonic() - self._last >= _INTERVAL_SECONDS:
            self.read()

    def read(self) -> None:
        """Write what the counters say now."""
        self._last, now = time.monotonic(), time.time()
        samples = []
        for counted, file in self._sources:
            name = counted.name if counted.elsewhere is None else counted.elsewhere[1]
            traffic = procfs.interfaces(file.read())
            samples += [NetworkSample(now, counted.name, *traffic[name])] if name in traffic else []
        if samples:
            self._writer.write_many(samples)

    def close(self) -> None:
        """Read a last time, and close the counters."""
        self.read()
        for _, file in self._sources:
            file.close()


def _open_counters(counted: CountedInterface) -> ProcFile:
    """Counters of the namespace that the interface is in; a file that was opened there tells of there ever after."""
    file = ProcFile(_HERE)
    if counted.elsewhere is None:
        file.read()
    else:
        netns.run_inside(counted.elsewhere[0], file.read)
    return file


#: What NCCL said of variables in earlier runs of this process: it reads most of them once, and logs are a run's own.
_SAID = list[str]()
_ENDED = Proof(None, UNTOLD, "the rank ended before it looked")


def note_asked(settings: Environment, writer: RecordWriter) -> None:
    """As a rank begins: what its run asks for and what its process has, in case that it never gets to :func:`note`."""
    rows = [_row(name, value, _ENDED) for name, value in environment.requested_settings(settings).items()]
    if rows:
        writer.event(ASKED, rows=[asdict(row) for row in rows])


def note(requested: Environment, device: torch.device, log: Path, writer: RecordWriter) -> None:
    """As a rank has trained: what came of each setting. ``log`` has what NCCL printed, if that was on.

    A warm worker's runs all ask for the same variables, so each of them comes here if one does.
    """
    wanted = environment.requested_settings(requested)
    lines = _lines(log) if any(name.startswith("NCCL_") for name in wanted) else []
    rows = [_row(name, value, _verify_setting(name, value, device, lines)) for name, value in wanted.items()]
    _SAID.extend(line for line in settings(lines) if line not in _SAID)
    if rows:
        writer.event(PROOF, rows=[asdict(row) for row in rows])


#: The variable of threads, and what a process had of it, and how many threads, before the first turn of a run.
_THREADS = "OMP_NUM_THREADS"
_BEGUN: list[tuple[str | None, int]] = []


def turn_threads(settings: Environment, device: torch.device, writer: RecordWriter) -> None:
    """Between two steps: as many threads as a run asks for from now on, those that the rank began with where it asks
    for none; told anew.
    """
    _set_threads(settings.OMP_NUM_THREADS)
    wanted = environment.requested_settings(settings)
    rows = [
        _row(name, value, _threads(value) if name == _THREADS else _verify_setting(name, value, device, []))
        for name, value in wanted.items()
    ]
    writer.event(ASKED, rows=[asdict(row) for row in rows])


def restore_environment() -> None:
    """A warm rank's next run has what this one began with."""
    if _BEGUN:
        _set_threads(None)
        _BEGUN.clear()


def _set_threads(count: int | None) -> None:
    if not _BEGUN:
        _BEGUN.append((os.environ.get(_THREADS), torch.get_num_threads()))
    text, threads = _BEGUN[0]
    torch.set_num_threads(count or threads)
    if (text := text if count is None else str(count)) is None:
        os.environ.pop(_THREADS, None)
    else:
        os.environ[_THREADS] = text


def _row(name: str, value: Any, found_proof: Proof) -> EnvironmentRow:
    text, value_in_use = environment.text_of(name, value), environment.process_value(name)
    if value_in_use != text:
        found_proof = Proof(found_proof.used, NO, "its process does not have it so")
    return EnvironmentRow(name, text, value_in_use, found_proof.used, found_proof.proven, found_proof.how)


def _verify_setting(name: str, value: Any, device: torch.device, lines: list[str]) -> Proof:
    silent = environment.ineffective_reason(name, device.type, dist.get_world_size())
    if silent is not None:
        return Proof(None, NO, silent)
    if name in _TRIED:
        return _TRIED[name](value)
    if VARIABLES[name].part is not None:
        return _allocator(name, value)
    if name.startswith("NCCL_"):
        return proof(name, environment.text_of(name, value), lines, _SAID)
    return Proof(None, UNTOLD, "the library does not tell what it uses")


def _threads(count: int) -> Proof:
    used = torch.get_num_threads()
    return Proof(str(used), YES if used == count else NO, "torch.get_num_threads")


_TRIED: dict[str, Callable[[Any], Proof]] = {
    "OMP_NUM_THREADS": _threads,
    "MALLOC_ARENA_MAX": processes.arenas,
    "MALLOC_MMAP_THRESHOLD_": processes.prove_mmap_threshold,
}


def _allocator(name: str, value: Any) -> Proof:
    settings_in_use = torch_private.allocator_snapshot()["allocator_settings"]
    return allocator_proof(name, value, settings_in_use)


def allocator_proof(name: str, value: Any, settings_in_use: dict[str, Any]) -> Proof:
    """Of a setting of the GPU allocator, from the ``allocator_settings`` of its snapshot."""
    key = {"max_split_size_mb": "max_split_size"}.get(str(VARIABLES[name].part), str(VARIABLES[name].part))
    evidence = f"allocator_settings.{key} of torch.cuda.memory's snapshot"
    if key not in settings_in_use:
        return Proof(None, UNTOLD, f"no {evidence}")
    wanted = value * 2**20 if key == "max_split_size" else value
    used = settings_in_use[key]
    if isinstance(used, dict):  # divisions are told for each size
        same = all(int(value) == wanted for value in used.values())
    else:
        same = math.isclose(float(used), float(wanted), rel_tol=1e-6)
    return Proof(str(used), YES if same else NO, evidence)


def _lines(log: Path) -> list[str]:
    ctypes.CDLL(None).fflush(None)  # NCCL prints through the C library, which keeps what goes to a file
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


#: A run has few sizes of messages; more are a list that nobody reads.
_NOTED = 12


def facts() -> dict[str, str]:
    """The version of NCCL, or of RCCL and the ROCm that torch is built for; nothing under another backend."""
    if dist.get_backend() != "nccl":
        return {}
    version = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"nccl": version} if torch.version.hip is None else {"rccl": version, "rocm": torch.version.hip}


def note_choices(log: Path, writer: RecordWriter) -> None:
    """Algorithm and protocol of each operation and size, from a rank's log; only with ``NCCL_DEBUG`` set."""
    if dist.get_backend() != "nccl" or not os.environ.get("NCCL_DEBUG"):
        return
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            found_choices = choices(lines)
    except OSError:
        return
    for choice in found_choices[:_NOTED]:
        writer.event("note", text=f"NCCL {choice}")
