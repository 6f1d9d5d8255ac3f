"""What a process's resident memory consists of."""

import os
from pathlib import Path

import pytest

from profilers.system import memory
from profilers.system.procfs import resident_bytes

SMAPS = """55d0-55d1 r--p 00000000 fe:00 123 /usr/lib/lib one.so
Rss:                 8 kB
Pss:                 4 kB
7f00-7f01 rw-p 00000000 00:00 0
Rss:               100 kB
7f01-7f02 rw-p 00000000 00:00 0
Rss:                50 kB
7f02-7f03 r-xp 00001000 fe:00 123 /usr/lib/lib one.so
Rss:                 4 kB
7f03-7f04 ---p 00000000 00:00 0 [heap]
Rss:                 0 kB
"""


def test_mappings_are_summed_by_name_the_largest_first() -> None:
    found = memory.largest(SMAPS)
    assert list(found.items()) == [("anonymous", 150 * 1024), ("/usr/lib/lib one.so", 12 * 1024)]


def test_this_process() -> None:
    found = memory.summary()
    resident = resident_bytes(Path(f"/proc/{os.getpid()}/statm").read_bytes())
    assert found["bytes"]["Rss"] == pytest.approx(resident, rel=0.1)
    assert 0 < sum(found["mappings"].values()) <= found["bytes"]["Rss"] * 1.1


def test_what_the_system_does_not_tell_is_none(tmp_path: Path) -> None:
    assert memory.summary(tmp_path) == {"bytes": None, "mappings": None}
