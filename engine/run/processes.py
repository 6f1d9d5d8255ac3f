"""What a rank's process asks of the operating system and the C library.

To die with its controller, even while it is stopped or holds the interpreter lock; how its threads share cores; and
how malloc really behaves: its arenas of threads, and from which size on blocks are mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import psutil

from engine.run.outcome import Ending
from profilers.collectives.nccl_log import Proof
from profilers.model.environment import NO, UNTOLD, YES


def is_running(pid: int) -> bool:
    """Whether there is a process of that number, and it has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def die_with(lifeline: int) -> None:
    """Kill this process when the other end of a pipe closes; nothing is ever written to that pipe.

    The fork server, not the controller, is a rank's parent, so the parent-death signal would watch the wrong
    process. On Linux the kernel itself sends SIGKILL when the pipe changes; elsewhere a thread watches it.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="lifeline").start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def yield_to_running_threads() -> None:
    """A thread of this process that wakes up waits for the running one's time slice to end; Linux only.

    To be called before the first process group: threads inherit it. gloo's event thread spins while another thread
    holds a connection's lock. Under the usual policy it pushes that thread off the core when it wakes, and spins for
    a whole time slice: on busy cores, more than the rest of a tensor-parallel step.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then steps are slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


#: A tenth of the weight of who computes; less, and a thread that holds the interpreter's lock would keep it for long.
_BEHIND = 10


def lower_thread_priority() -> None:
    """The calling thread leaves cores to whoever computes on them; Linux only, where a thread has a priority."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _BEHIND)


_SLACK_BYTES = 2048
_NOT_GLIBC = Proof(None, UNTOLD, "the C library does not tell (it is not glibc)")


class _Counters(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def arenas(most: int) -> Proof:
    """One thread more than arenas asked for allocates: without the limit each would get one of its own."""
    libc = _libc()
    if libc is None:
        return _NOT_GLIBC
    count = most + 1
    holding, is_over = threading.Barrier(count + 1), threading.Event()

    def allocate() -> None:
        block = libc.malloc(256)
        holding.wait()
        is_over.wait()
        libc.free(block)

    threads = [threading.Thread(target=allocate, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    holding.wait()
    count_now = _arenas(libc)
    is_over.set()
    for thread in threads:
        thread.join()
    evidence = f"malloc_info while {count} threads more than the others had allocated"
    return Proof(str(count_now), YES if count_now <= most else NO, evidence)


def prove_mmap_threshold(threshold: int) -> Proof:
    """A block below the threshold is not mapped by itself, and one above it is.

    In this order: where the threshold was not set, a mapped block that is freed becomes the new one.
    """
    libc = _libc()
    if libc is None:
        return _NOT_GLIBC
    below, above = (_is_mapped(libc, threshold + slack) for slack in (-_SLACK_BYTES, _SLACK_BYTES))
    evidence = "mallinfo2 of a block 2 KiB below and one 2 KiB above"
    if above is None or below is None:
        return Proof(None, UNTOLD, f"{evidence}: the heap did not grow")
    if above and not below:
        return Proof(str(threshold), YES, evidence)
    return Proof("a lower one" if below else "a higher one", NO, evidence)


def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("malloc_info", "mallinfo2", "open_memstream")):
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mallinfo2.restype = _Counters
    libc.open_memstream.restype = ctypes.c_void_p
    libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    return libc


def _arenas(libc: ctypes.CDLL) -> int:
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    heaps = (text.value or b"").count(b"<heap nr=")
    libc.free(ctypes.cast(text, ctypes.c_void_p))
    return heaps


def _is_mapped(libc: ctypes.CDLL, size: int) -> bool | None:
    """Whether new memory for a block is mapped by itself; what lies free is used up first. None if in doubt."""
    blocks: list[int] = []
    before = libc.mallinfo2()
    try:
        for _ in range(before.fordblks // size + 2):
            blocks.append(libc.malloc(size))
            now = libc.mallinfo2()
            if now.hblks > before.hblks or now.arena > before.arena:
                return bool(now.hblks > before.hblks)
        return None
    finally:
        for block in blocks:
            libc.free(block)


#: What a thread that could not be started says; its stack may have been too much, or the number of threads.
_NO_THREAD = ("can't start new thread", "resource temporarily unavailable")
_STATUS = Path("/proc/self/status")
_STACK_BYTES = 8 << 20


def data_limit() -> int:
    """Bytes that this process may have for its data; RLIM_INFINITY without a limit."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def ran_out_of_memory(text: str, limit: int | None = None) -> bool:
    """Whether want of memory is the cause of an error in this process: its message says so, or a thread found no room
    for its stack within the ``limit`` that the process had then, by default the one that it has.
    """
    if Ending.OOM.is_named_in(text):
        return True
    limit = data_limit() if limit is None else limit
    if limit == resource.RLIM_INFINITY or not any(words in text.lower() for words in _NO_THREAD):
        return False
    try:
        rows = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # the kernel does not tell what counts against the limit
        rows = []
    data = next((int(row.split()[1]) << 10 for row in rows if row.startswith("VmData:")), 0)
    return data + _STACK_BYTES > limit
