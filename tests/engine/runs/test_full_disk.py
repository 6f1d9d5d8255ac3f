"""A disk that is full or fills up while a run goes: bad input before, counted losses during, no traceback."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint import checkpoint_folder
from engine.config.errors import InputError
from engine.run import run_folder
from engine.session import Session
from tests.support.runs import execute, small
from tests.support.waiting import wait_until


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


def test_a_disk_that_fills_up_costs_checkpoints_not_the_run(small_disk: Path, tmp_path: Path) -> None:
    def fill_later(run: Path) -> None:
        def wait_and_fill() -> None:
            if wait_until(lambda: checkpoint_folder.last_of(run) is not None):
                fill(small_disk, 64 * 1024)

        threading.Thread(target=wait_and_fill, daemon=True).start()

    thin = {
        "model__layers": 1,
        "model__hidden": 16,
        "model__heads": 2,
        "model__kv_heads": 2,
        "model__ffn_hidden": 16,
    }
    saving = {"checkpoint__every_steps": 5, "checkpoint__asynchronous": True, "checkpoint__keep": 1}
    with Session(small_disk / "home") as session:
        config = small(parallel__dp=2, train__steps=60, profile__collectives=False, **thin, **saving)
        outcome, summary = execute(session, config, on_start=fill_later)
    assert outcome.good, outcome
    failed = [row for row in summary.checkpoints if row.problem is not None]
    assert {row.problem for row in failed} == {"No space left on device"}
    saved = [row.step for row in summary.checkpoints if row.problem is None]
    run = small_disk / "home" / summary.id
    assert [path.name for path in checkpoint_folder.complete(run)] == [checkpoint_folder.name_of(saved[-1])]
    assert not list((run / checkpoint_folder.CHECKPOINTS).glob(".saving-*"))
    with Session(tmp_path / "roomy") as session:
        resumed = small(train__steps=saved[-1] + 2, train__resume=str(run), **thin)
        outcome, after = execute(session, resumed)
    assert outcome.good, outcome
    assert after.losses == pytest.approx(summary.losses[saved[-1] : saved[-1] + 2], abs=1e-5, rel=0)


def test_a_disk_that_fills_up_costs_records_not_the_run(small_disk: Path) -> None:
    home = small_disk / "home"
    with Session(home) as session:
        outcome, summary = execute(
            session,
            small(
                parallel__dp=2,
                profile__budget=None,
                train__steps=250,
                model__layers=1,
                overlap__bucket_mb=0.05,
            ),
            on_start=lambda folder: fill(small_disk, 96 * 1024),
        )
    assert outcome.good, outcome
    written = [loss for loss in summary.losses if loss is not None]
    assert 3 < len(written) < 250
    assert (home / summary.id / run_folder.CONFIG).exists()
