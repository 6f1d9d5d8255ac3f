"""Torch's cache of compiled code: what a killed compiler left there would break every later compiled run.

Inductor takes a library that is there for a good one, and its linker writes under the final name. Killed on the way
it leaves an empty or short file ("file too short"), killed in a precompiled header one that no compiler can read.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from profilers import torch_private

#: Names that torch's ``_inductor/codecache.py`` and ``_inductor/cpp_builder.py`` give.
_HEADERS, _LOCKS, _BUILDING = "precompiled_headers", "locks", "_CxxBuild"
_PRODUCTS = (".so", ".o", ".gch")
_LOCK_SECONDS = 600.0


def remove_broken_entries() -> int:
    """Remove what is not whole, so that it is compiled again; returns how many files that were.

    A file is removed under the lock under which its compiler runs: what another process is writing stays. Ranks may
    call this at the same time; each file is counted by one of them. What cannot be removed is the compiler's to tell.
    """
    own_folder, default = map(Path, torch_private.compiled_code_folders())
    headers = default / _HEADERS
    folders = {folder: own_folder / _LOCKS for folder in own_folder.iterdir() if folder.is_dir()}
    folders[headers] = headers / _LOCKS
    removed = 0
    for folder, locks in folders.items():
        for path in sorted(set(_candidates(folder))):
            with contextlib.suppress(OSError):
                removed += _is_broken(path) and _remove(path, locks)
    return removed


def _candidates(folder: Path) -> Iterator[Path]:
    """Files that a compiler makes; and those that one was about to make, by the folder in which it works."""
    for path in folder.glob("*"):
        if path.name.endswith(_BUILDING):
            yield from (path.with_name(path.name.removesuffix(_BUILDING) + end) for end in _PRODUCTS)
        elif path.suffix in _PRODUCTS:
            yield path


def _remove(path: Path, locks: Path) -> bool:
    """Whether this call removed a file that is still broken when nobody compiles it."""
    locks.mkdir(exist_ok=True)
    with torch_private.compiler_lock(str(locks / f"{path.name.partition('.')[0]}.lock"), _LOCK_SECONDS):
        broken = _is_broken(path) and path.exists()
        if broken:
            path.unlink()
        if not any(path.with_name(path.stem + end).exists() for end in _PRODUCTS):
            shutil.rmtree(_working(path), ignore_errors=True)
        return broken


def _is_broken(path: Path) -> bool:
    """Whether its compiler never came to the end: it removes its folder there."""
    if _working(path).exists():
        return True
    return path.suffix != ".gch" and path.exists() and not _is_whole(path)


def _working(path: Path) -> Path:
    return path.with_name(path.stem + _BUILDING)


def _is_whole(path: Path) -> bool:
    """Whether a library has all that its ELF header promises; elsewhere, whether it has anything.

    The section headers come last in the file (System V ABI, chapter 4), and linkers write the first one at the end.
    """
    with path.open("rb") as file:
        header = file.read(64)
    size = path.stat().st_size
    if sys.platform != "linux":
        return size > 0
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 0x28)
    entry_size, count = struct.unpack_from(f"{order}HH", header, 0x3A)
    return bool(table > 0 and table + entry_size * count <= size)
