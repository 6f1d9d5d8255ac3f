"""The folder of checkpoints, while processes write to it and others remove what was undone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.checkpoint.checkpoint_folder import (
    Manifest,
    checksum,
    complete,
    forget_after,
    last_of,
    mark_save,
    name_of,
    publish,
    read_manifest,
    scratch_of,
)


def saved(run: Path, step: int, *, removed: bool = False) -> None:
    scratch = scratch_of(run, step)
    scratch.mkdir(parents=True)
    file = scratch / "__0_0.distcp"
    file.write_bytes(b"weights")
    sums = {file.name: checksum(file)}
    if removed:
        file.unlink()
    publish(run, Manifest(step, {}, {}, {}), sums, keep=2)


def test_a_checkpoint_whose_files_somebody_removed_does_not_become_the_last_one(tmp_path: Path) -> None:
    """It would say that it is whole, and nobody could go on from it."""
    saved(tmp_path, 4)
    with pytest.raises(FileNotFoundError, match="somebody removed what a rank has written"):
        saved(tmp_path, 8, removed=True)
    last = last_of(tmp_path)
    assert last is not None and last.name == name_of(4)
    manifest = read_manifest(last)
    assert manifest is not None and manifest.files.keys() == {"__0_0.distcp"}


def test_what_was_undone_is_forgotten_once_a_save_that_is_under_way_is_over(tmp_path: Path) -> None:
    """Or it would lose its files halfway, and be there although it was undone."""
    saved(tmp_path, 4)
    begun, may_end = threading.Event(), threading.Event()

    def save() -> None:
        with mark_save(tmp_path):
            begun.set()
            may_end.wait(60)
            saved(tmp_path, 8)

    saving = threading.Thread(target=save)
    forgetting = threading.Thread(target=forget_after, args=(tmp_path, 4))
    saving.start()
    assert begun.wait(60)
    forgetting.start()
    may_end.set()
    saving.join(60)
    forgetting.join(60)
    assert [path.name for path in complete(tmp_path)] == [name_of(4)]
