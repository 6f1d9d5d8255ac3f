"""What this process's resident memory consists of, from /proc/self/smaps_rollup and smaps.

https://www.kernel.org/doc/html/latest/filesystems/proc.html
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

_LARGEST = 20
_KIB = 1024


def summary(proc: Path = Path("/proc/self")) -> dict[str, Any]:
    """Bytes by kind of the whole process, and resident bytes of its largest mappings by name.

    A part is None where the system does not tell it.
    """
    return {"bytes": _read(proc / "smaps_rollup", totals), "mappings": _read(proc / "smaps", largest)}


def totals(rollup: str) -> dict[str, int]:
    """Bytes by the names that the kernel gives: Rss, Pss, Private_Dirty, AnonHugePages, Swap, Locked, ..."""
    rows = (row.split() for row in rollup.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * _KIB for row in rows if len(row) == 3 and row[2] == "kB"}


def largest(smaps: str) -> dict[str, int]:
    """Resident bytes by file; memory without a file is ``anonymous``. The largest first."""
    sizes: Counter[str] = Counter()
    name = ""
    for row in smaps.splitlines():
        first, *rest = row.split(None, 5)
        if "-" in first and not first.endswith(":"):
            name = rest[4] if len(rest) > 4 else "anonymous"
        elif first == "Rss:":
            sizes[name] += int(rest[0]) * _KIB
    return {name: size for name, size in sizes.most_common(_LARGEST) if size}


def _read(path: Path, parse: Any) -> dict[str, int] | None:
    try:
        found: dict[str, int] = parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found
