"""Freed memory goes back to the system, as the kernel counts it in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from workbench.records import heap

#: Frees many small arrays between small ones that stay, and prints MiB that are resident: at its most, freed, trimmed.
_SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from profilers.system.procfs import resident_bytes
from workbench.records import heap

def resident():
    return resident_bytes(Path("/proc/self/statm").read_bytes())

if sys.argv[1] == "limited":
    assert heap.limit()
blocks = [np.ones(int(sys.argv[2])) for _ in range(4000)]
stays = blocks[::100]
most = resident()
blocks.clear()
freed = resident()
assert heap.trim()
print(*[one // 2**20 for one in (most, freed, resident())])
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")


def _resident_mib(kind: str, values: int) -> tuple[int, int, int]:
    arguments = [sys.executable, "-c", _SCRIPT, kind, str(values)]
    most, freed, trimmed = subprocess.run(
        arguments, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    return int(most), int(freed), int(trimmed)


@glibc
@pytest.mark.parametrize("kind", ["usual", "limited"])
def test_what_was_freed_between_what_stays_is_given_back(kind: str) -> None:
    most, freed, trimmed = _resident_mib(kind, 4096)
    assert freed > most - 30, "blocks of 32 KiB stay with the C library; else there is nothing to show"
    assert trimmed < freed - 60


@glibc
def test_large_blocks_return_by_themselves_once_the_heap_is_limited() -> None:
    most, freed, _ = _resident_mib("limited", 2**14 + 2**11)
    assert freed < most - 400


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    assert not heap.limit()
    assert not heap.trim()
