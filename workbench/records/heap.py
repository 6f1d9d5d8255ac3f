"""The heap of a process that is left open for days: memory that was freed goes back to the system.

A page that draws itself each second frees what it drew with. The C library keeps most of that: glibc takes large arrays
from its own heap once it has seen some freed (``M_MMAP_THRESHOLD`` grows by itself), and a heap whose ends are in use
does not shrink. Elsewhere, and on another C library, nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
import gc

#: So many new objects before Python looks for cycles among them. At its own 700 a study of 10,000 trials, which is read
#: once and kept, is looked through so often that a seventh of the time of reading it goes into that.
OBJECTS = 50_000
#: Larger blocks come from the system and return to it when they are freed: a step's column of a long run is larger.
LARGE_BYTES = 128 * 1024
#: Heaps that threads share: a run of a page is a thread, and each heap keeps free memory of its own.
HEAPS = 2
#: Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def collect_seldom() -> None:
    """Garbage is looked for after ``OBJECTS`` new objects, for the rest of this process."""
    gc.set_threshold(OBJECTS)


def limit() -> bool:
    """Few heaps, and large blocks from the system, for the rest of this process; whether the C library could."""
    library = _glibc()
    if library is None:
        return False
    values = {_MMAP_THRESHOLD: LARGE_BYTES, _TRIM_THRESHOLD: LARGE_BYTES, _ARENA_MAX: HEAPS}
    answers = [library.mallopt(parameter, value) for parameter, value in values.items()]
    return all(answers)


def trim() -> bool:
    """Gives free memory of all heaps back, which takes some milliseconds; whether the C library could."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)
    return library is not None


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None
