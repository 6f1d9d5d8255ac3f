"""What the C library's allocator really does in this process, tried out: arenas of threads, and what is mapped."""

from __future__ import annotations

import ctypes
import threading

from profilers.collectives.nccl_log import Proof
from profilers.model.environment import NO, UNTOLD, YES

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
    holding, done = threading.Barrier(count + 1), threading.Event()

    def allocate() -> None:
        block = libc.malloc(256)
        holding.wait()
        done.wait()
        libc.free(block)

    threads = [threading.Thread(target=allocate, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    holding.wait()
    found = _arenas(libc)
    done.set()
    for thread in threads:
        thread.join()
    how = f"malloc_info while {count} threads more than the others had allocated"
    return Proof(str(found), YES if found <= most else NO, how)


def mapped_from(threshold: int) -> Proof:
    """A block below the threshold is not mapped by itself, and one above it is.

    In this order: where the threshold was not set, a mapped block that is freed becomes the new one.
    """
    libc = _libc()
    if libc is None:
        return _NOT_GLIBC
    below, above = (_is_mapped(libc, threshold + slack) for slack in (-_SLACK_BYTES, _SLACK_BYTES))
    how = "mallinfo2 of a block 2 KiB below and one 2 KiB above"
    if above is None or below is None:
        return Proof(None, UNTOLD, f"{how}: the heap did not grow")
    if above and not below:
        return Proof(str(threshold), YES, how)
    return Proof("a lower one" if below else "a higher one", NO, how)


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
    found = (text.value or b"").count(b"<heap nr=")
    libc.free(ctypes.cast(text, ctypes.c_void_p))
    return found


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
