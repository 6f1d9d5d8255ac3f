"""Copies of activations to where they take no memory of the device, and back; beside what the device computes.

To the host: of a GPU pinned memory, each direction on a stream of its own; of a CPU other memory of the same host, each
direction on a thread of its own. To disk: a file in the run's folder, which has no name from the start, so that its
space is given back whatever ends the rank.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.comm import host_values

T = TypeVar("T")
_NOT_WRITTEN = (
    "activations cannot be written to the run's folder ({}): make room on its disk, name a home on another one, give "
    "memory.budget_gib more, or memory.block_actions without disk"
)


class PendingCopy(Protocol):
    """Copies on their way back to their device."""

    def wait(self) -> list[Tensor]:
        """The tensors; what the current stream does next comes after the copy."""


class OffloadedCopy(Protocol):
    """Copies that are not on the device; they go when this does."""

    nbytes: int

    def leave(self) -> Callable[[], None]:
        """Waits until the memory that was copied may be used again, and lets go of it."""


class Copies(Protocol):
    """A place for activations."""

    def start_offload(self, flats: Sequence[Tensor]) -> OffloadedCopy:
        """Start to copy tensors there, each a whole storage as bytes."""

    def start_fetch(self, away: OffloadedCopy) -> PendingCopy:
        """Start to copy them back; comes after every ``down`` that was asked for before."""

    def close(self) -> None:
        """Nothing is copied any more."""


class CopyThread:
    """A thread that does one copy after the other; with a ``rate`` in bytes per second it takes its time, as a slower
    link would.
    """

    def __init__(self, name: str, rate: float | None = None) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._rate, self._free_at = rate, 0.0

    def submit(self, copy: Callable[[], T], size: int) -> Future[T]:
        """The result of ``copy``, which moves so many bytes."""
        return self._threads.submit(self._pace_copy, copy, size)

    def close(self) -> None:
        """Once all is done."""
        self._threads.shutdown()

    def _pace_copy(self, copy: Callable[[], T], size: int) -> T:
        if self._rate is not None:
            self._free_at = max(time.perf_counter(), self._free_at) + size / self._rate
        result = copy()
        if self._rate is not None:
            time.sleep(max(0.0, self._free_at - time.perf_counter()))
        return result


class GpuPendingCopy:
    """On its way to a GPU; computations that use it wait for ``event``. Without one it never left."""

    def __init__(self, tensors: list[Tensor], event: torch.cuda.Event | None) -> None:
        self.tensors, self._event = tensors, event

    def wait(self) -> list[Tensor]:
        if self._event is None:
            return self.tensors
        stream = torch.cuda.current_stream(self.tensors[0].device)
        stream.wait_event(self._event)
        for tensor in self.tensors:
            tensor.record_stream(stream)
        return self.tensors


class PinnedCopy:
    """In pinned memory; what was copied is held until computation comes after the copy, and may then be used again at
    once: a ``record_stream`` would hold it until the host learns that the copy is through.
    """

    def __init__(self, hosts: list[Tensor], flats: list[Tensor], event: torch.cuda.Event) -> None:
        self.hosts, self.event = hosts, event
        self.nbytes = sum(host.nbytes for host in hosts)
        self.flats = flats

    def leave(self) -> Callable[[], None]:
        flats, event = self.flats, self.event

        def gone() -> None:
            if flats:
                torch.cuda.current_stream(flats[0].device).wait_event(event)
                flats.clear()

        return gone


class StreamCopies:
    """Between a GPU and pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down, self._up = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def start_offload(self, flats: Sequence[Tensor]) -> PinnedCopy:
        hosts = [torch.empty_like(flat, device="cpu", pin_memory=True) for flat in flats]
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._down):
            for host, flat in zip(hosts, flats, strict=True):
                host.copy_(flat, non_blocking=True)
        return PinnedCopy(hosts, list(flats), self._down.record_event())

    def start_fetch(self, away: OffloadedCopy) -> GpuPendingCopy:
        assert isinstance(away, PinnedCopy)
        if away.flats:  # it is wanted before it was gone
            return self._still_here(away)
        self._up.wait_stream(self._down)
        with torch.cuda.stream(self._up):
            tensors = [torch.empty_like(host, device=self._device) for host in away.hosts]
            for tensor, host in zip(tensors, away.hosts, strict=True):
                tensor.copy_(host, non_blocking=True)
        return GpuPendingCopy(tensors, self._up.record_event())

    def close(self) -> None:
        host_values.wait_for_stream(self._down)
        host_values.wait_for_stream(self._up)

    def _still_here(self, away: PinnedCopy) -> GpuPendingCopy:
        tensors = list(away.flats)
        away.flats.clear()
        for tensor in tensors:
            tensor.record_stream(self._down)
        return GpuPendingCopy(tensors, None)


class _PendingHostCopy:
    def __init__(self, future: Future[list[Tensor]]) -> None:
        self._found = future

    def wait(self) -> list[Tensor]:
        return self._found.result()


class HostCopy:
    """What a thread copied away."""

    def __init__(self, copies: Future[list[Tensor]], nbytes: int) -> None:
        self.copies, self.nbytes = copies, nbytes

    def leave(self) -> Callable[[], None]:
        copies = self.copies

        def gone() -> None:
            copies.result()

        return gone


class ThreadCopies:
    """Between a CPU's memory and more of it: the host's part of a machine with two kinds of memory."""

    def __init__(self, rate: float | None = None) -> None:
        self._down, self._up = CopyThread("offload-down", rate), CopyThread("offload-up", rate)
        self._pool = Pool()

    def start_offload(self, flats: Sequence[Tensor]) -> HostCopy:
        size, sources = sum(flat.nbytes for flat in flats), list(flats)
        return HostCopy(self._down.submit(lambda: self._copy_all(sources), size), size)

    def start_fetch(self, away: OffloadedCopy) -> _PendingHostCopy:
        assert isinstance(away, HostCopy)
        copies = away.copies
        return _PendingHostCopy(self._up.submit(lambda: self._copy_all(copies.result()), away.nbytes))

    def close(self) -> None:
        self._down.close()
        self._up.close()

    def _copy_all(self, tensors: list[Tensor]) -> list[Tensor]:
        """Copies, made by this thread alone: torch would start as many more as an operator has. The list is emptied."""
        buffers = [self._pool.take(tensor.nbytes) for tensor in tensors]
        for copy, tensor in zip(buffers, tensors, strict=True):
            np.copyto(copy.numpy(), tensor.detach().numpy())
        tensors.clear()
        return buffers


class Pool:
    """Memory of a CPU that is used again: what the system gives and takes back at each step, it has to clear and to
    tell all threads of.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray[Any, Any]]] = {}

    def take(self, size: int) -> Tensor:
        """So many bytes, which come back when nobody holds them."""
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else np.empty(size, np.uint8)
        lent = memory.view()
        weakref.finalize(lent, free.append, memory).atexit = False
        return torch.from_numpy(lent)


class _DiskCopy:
    """Parts of a file; they are free again once this is gone."""

    def __init__(self, places: list[tuple[int, int]], written: Future[None], file: _File) -> None:
        self.places, self.written, self._file = places, written, file
        self.nbytes = sum(size for _, size in places)

    def leave(self) -> Callable[[], None]:
        return self.written.result

    def __del__(self) -> None:
        self._file.free(self.places)


class _File:
    """A file without a name, and the parts of it that are free."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"activations-{os.getpid()}-{id(self)}"
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        path.unlink()
        self._end, self._free = 0, dict[int, list[int]]()
        self._pool = Pool()

    def take(self, size: int) -> int:
        """Where that many bytes may be written."""
        if free := self._free.get(size):
            return free.pop()
        place, self._end = self._end, self._end + size
        return place

    def free(self, places: list[tuple[int, int]]) -> None:
        """Each a place and its size."""
        for place, size in places:
            self._free.setdefault(size, []).append(place)

    def write(self, place: int, flat: Tensor) -> None:
        """All of a tensor of bytes.

        Raises:
            OSError: the disk is full, say; with what to do.
        """
        remaining = _bytes_of(flat)
        while remaining:
            try:
                written = os.pwrite(self.number, remaining, place)
            except OSError as error:
                raise OSError(error.errno, _NOT_WRITTEN.format(error.strerror)) from None
            remaining, place = remaining[written:], place + written

    def read(self, place: int, size: int, pin: bool) -> Tensor:
        """As many bytes, in pinned memory if a GPU is to have them.

        Raises:
            OSError: they are not there.
        """
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True) if pin else self._pool.take(size)
        remaining = _bytes_of(buffer)
        while remaining:
            bytes_read = os.preadv(self.number, [remaining], place)
            if not bytes_read:
                raise OSError(f"{size:,} bytes of activations are no longer in their file")
            remaining, place = remaining[bytes_read:], place + bytes_read
        return buffer

    def close(self) -> None:
        os.close(self.number)


def _bytes_of(tensor: Tensor) -> memoryview:
    values: Any = tensor.detach().numpy()
    return memoryview(values).cast("B")


class DiskCopies:
    """Between a device and a file; a GPU's activations go through pinned memory. ``rate`` as of a ``CopyThread``."""

    def __init__(self, device: torch.device, folder: Path, rate: float | None = None) -> None:
        self._device, self._file = device, _File(folder)
        self._down, self._up = CopyThread("disk-down", rate), CopyThread("disk-up", rate)
        self._staged = StreamCopies(device) if device.type == "cuda" else None

    def start_offload(self, flats: Sequence[Tensor]) -> _DiskCopy:
        places = [(self._file.take(flat.nbytes), flat.nbytes) for flat in flats]
        staged = None if self._staged is None else self._staged.start_offload(flats)
        sources = [] if staged is not None else list(flats)

        def write() -> None:
            if staged is not None:
                host_values.wait_for_stream(staged.event)
                sources.extend(staged.hosts)
                staged.hosts.clear()
            for (place, _), flat in zip(places, sources, strict=True):
                self._file.write(place, flat)
            sources.clear()

        return _DiskCopy(places, self._down.submit(write, sum(size for _, size in places)), self._file)

    def start_fetch(self, away: OffloadedCopy) -> PendingCopy:
        assert isinstance(away, _DiskCopy)
        staged = self._staged

        def read() -> list[Tensor]:
            away.written.result()
            return [self._file.read(place, size, staged is not None) for place, size in away.places]

        future = self._up.submit(read, away.nbytes)
        return _PendingHostCopy(future) if staged is None else _StagedDiskCopy(future, staged)

    def close(self) -> None:
        self._down.close()
        self._up.close()
        self._file.close()


class _StagedDiskCopy:
    """From a file to pinned memory, and from there to a GPU once it is asked for."""

    def __init__(self, future: Future[list[Tensor]], staged: StreamCopies) -> None:
        self._found, self._staged = future, staged

    def wait(self) -> list[Tensor]:
        hosts = self._found.result()
        event = torch.cuda.current_stream().record_event()
        return self._staged.start_fetch(PinnedCopy(hosts, [], event)).wait()


def host_copies(device: torch.device) -> Copies:
    """Between a device and the host's memory."""
    return StreamCopies(device) if device.type == "cuda" else ThreadCopies()
