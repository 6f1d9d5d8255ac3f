"""Did the kernel kill a process for want of memory? Its log names it; where that cannot be read, a count has to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LOG = Path("/dev/kmsg")
_COUNTS = Path("/proc/vmstat")
_NAMESPACE = Path("/proc/self/ns/pid")
#: The kernel's log has the process numbers of the first namespace, whose inode is fixed.
_FIRST_NAMESPACE = "pid:[4026531836]"
_KILLED = re.compile(rb"Killed process (\d+) ")
_RECORD_BYTES = 8192


def count() -> int:
    """Processes that this kernel has killed for want of memory since boot; 0 where it does not tell."""
    try:
        rows = _COUNTS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def was_killed(pid: int, before: int) -> bool:
    """Whether it killed a process that died of SIGKILL, ``before`` being the count when that one began."""
    if count() <= before:
        return False
    named = _named()
    return named is None or pid in named


def _named() -> frozenset[int] | None:
    """Processes that its log says it killed; None if the log cannot be read here, or numbers processes otherwise."""
    try:
        if str(_NAMESPACE.readlink()) != _FIRST_NAMESPACE:
            return None
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = _KILLED.findall(b"\n".join(_records(log)))
    finally:
        os.close(log)
    return frozenset(map(int, found)) or None


def _records(log: int) -> list[bytes]:
    """What the log still has; one read is one record."""
    records = [b"-"]
    while records[-1]:
        try:
            records.append(os.read(log, _RECORD_BYTES))
        except BrokenPipeError:  # overwritten while it was read: go on with the next
            continue
        except OSError:
            break
    return records
