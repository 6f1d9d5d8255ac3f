"""Want of memory, by what is said of it, and by how near a process is to its limit. No torch."""

from __future__ import annotations

import resource
from pathlib import Path

#: How libraries, allocators and the dynamic linker put it, in lower case.
_WORDS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "memoryerror",
    "cannot enlarge memory",
)
#: What a thread that could not be started says; its stack may have been too much, or the number of threads.
_NO_THREAD = ("can't start new thread", "resource temporarily unavailable")
_STATUS = Path("/proc/self/status")
_STACK_BYTES = 8 << 20


def is_said(text: str) -> bool:
    """Whether a message speaks of it."""
    return any(words in text.lower() for words in _WORDS)


def explains(text: str) -> bool:
    """Whether it is the cause of an error in this process: the message says so, or a thread found no room."""
    return is_said(text) or (any(words in text.lower() for words in _NO_THREAD) and _no_room_for_a_stack())


def _no_room_for_a_stack() -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return limit != resource.RLIM_INFINITY and _data_bytes() + _STACK_BYTES > limit


def _data_bytes() -> int:
    """What counts against the limit; 0 where the kernel does not tell."""
    try:
        rows = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) << 10 for row in rows if row.startswith("VmData:")), 0)
