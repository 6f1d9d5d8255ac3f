"""A disk that is full or fills up while a run goes: bad input before, counted losses during, no traceback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import rundir
from engine.errors import InputError
from engine.session import Session
from tests.support.runs import execute, small


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path, leave_bytes: int) -> None:
    """Leave only so much free space."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - leave_bytes))


def test_a_full_disk_is_bad_input(small_disk: Path) -> None:
    fill(small_disk, 0)
    with Session(small_disk) as session, pytest.raises(InputError, match="No space left"):
        execute(session, small())


def test_a_disk_that_fills_up_costs_records_not_the_run(small_disk: Path) -> None:
    home = small_disk / "home"
    with Session(home) as session:
        outcome, summary = execute(
            session,
            small(parallel__dp=2, train__steps=250, model__layers=1, overlap__bucket_mb=0.05),
            on_start=lambda folder: fill(small_disk, 96 * 1024),
        )
    assert outcome.good, outcome
    written = [loss for loss in summary.losses if loss is not None]
    assert 3 < len(written) < 250
    assert (home / summary.id / rundir.CONFIG).exists()
