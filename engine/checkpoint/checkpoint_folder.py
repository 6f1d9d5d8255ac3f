"""Where a run's checkpoints lie, which of them is the last good one, and how a new one takes its place. No torch.

``RUN/checkpoints/step-000012`` is what a run needs to go on with step 12. It is written under another name, forced
to the disk and renamed, so that a folder of this name is complete. ``RUN/checkpoints/last`` holds the newest name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.run.run_folder import read_json

CHECKPOINTS = "checkpoints"
MANIFEST = "checkpoint.json"
#: Where ``torch.distributed.checkpoint`` notes which tensor lies where.
METADATA = ".metadata"
LAST = "last"
_CHUNK_BYTES = 2**20
_STEP, _SAVING, _OLD, _LOCK = "step-", ".saving-", ".old-", ".lock"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself: ``step`` is the next one to do; ``model`` are the sizes that have to agree;
    ``config`` is the saving run's in dotted keys; ``files`` gives the bytes and the CRC-32 of each file; ``plan`` is
    the plan of compression that held, if any; ``sequences`` are all that the steps so far took, and ``batch`` those of
    the last one, where their batch grows; ``backbone`` is the ``folder`` of the checkpoint with the frozen parameters
    that this one stands beside, and their ``sha256``, if any are frozen.
    """

    step: int
    model: dict[str, Any]
    config: dict[str, Any]
    files: dict[str, list[int]]
    plan: dict[str, Any] = field(default_factory=dict)
    sequences: int | None = None
    backbone: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None

    @property
    def bytes(self) -> int:
        """Size of the checkpoint."""
        return sum(size for size, _ in self.files.values())


def name_of(step: int) -> str:
    """A checkpoint's folder name."""
    return f"{_STEP}{step:06d}"


def scratch_of(run: Path, step: int) -> Path:
    """Where a checkpoint is written before it is complete."""
    return run / CHECKPOINTS / f"{_SAVING}{step:06d}"


def complete(run: Path) -> list[Path]:
    """A run's complete checkpoints, oldest first."""
    steps = {path: path.name[len(_STEP) :] for path in (run / CHECKPOINTS).glob(f"{_STEP}*")}
    return sorted((path for path in steps if steps[path].isdigit()), key=lambda path: int(steps[path]))


def last_of(run: Path) -> Path | None:
    """The checkpoint that ``last`` names; the newest one, if that is not there."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = run / CHECKPOINTS / (run / CHECKPOINTS / LAST).read_text(encoding="utf-8").strip()
        if named in complete(run):
            return named
    return next(reversed(complete(run)), None)


def read_manifest(folder: Path) -> Manifest | None:
    """What a checkpoint says about itself; None if it is not readable."""
    document = read_json(folder / MANIFEST)
    try:
        manifest = Manifest(**document) if document else None
    except TypeError:
        return None
    if manifest is None or not isinstance(manifest.step, int):
        return None
    tables = manifest.model, manifest.config, manifest.files, manifest.plan, manifest.backbone
    if not all(isinstance(part, dict) for part in tables):
        return None
    return (
        manifest
        if all(isinstance(facts, list) and len(facts) == 2 for facts in manifest.files.values())
        else None
    )


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def publish(
    run: Path, manifest: Manifest, checksums: dict[str, int], keep: int, protect: int | None = None
) -> Manifest:
    """Make a written checkpoint the last good one and let go of old ones, but not of the last one up to the step to
    ``protect``; returns the manifest with all files.

    ``checksums`` are those that ranks took of their own files.

    Raises:
        OSError: it could not be written to the end, or a file of a rank is gone again; the last good one stays.
    """
    scratch, home = scratch_of(run, manifest.step), run / CHECKPOINTS
    paths = sorted(scratch.iterdir())
    if missing := checksums.keys() - {path.name for path in paths}:
        raise FileNotFoundError(errno.ENOENT, "somebody removed what a rank has written", min(missing))
    sums = {path.name: checksum(path) for path in paths if path.name not in checksums} | checksums
    files = {path.name: [path.stat().st_size, sums[path.name]] for path in paths}
    full = replace(manifest, files=files)
    _write(scratch / MANIFEST, json.dumps(asdict(full), indent=1) + "\n")
    _force(scratch)
    pointer = home / f".{LAST}"
    # Before the rename: what fails for want of space fails while the folder is not yet complete.
    _write(pointer, name_of(manifest.step) + "\n")
    scratch.rename(home / name_of(manifest.step))
    _force(home)
    pointer.rename(home / LAST)
    _force(home)
    spared = [path for path in complete(run) if protect is not None and path.name <= name_of(protect)][-1:]
    for old in (path for path in complete(run)[:-keep] if path not in spared):
        with contextlib.suppress(
            OSError
        ):  # under another name first: half a checkpoint must not look like one
            old.rename(old.with_name(_OLD + old.name))
    _remove_unfinished(run)
    return full


def discard(run: Path, step: int) -> None:
    """Remove what a failed save left, and free its space."""
    shutil.rmtree(scratch_of(run, step), ignore_errors=True)


def forget_after(run: Path, step: int, whatever_is_left: bool = False) -> None:
    """Remove the checkpoints of later steps, which were undone, if there is one to go on from instead. A save that is
    under way is waited for.
    """
    with _locked_if_possible(run, fcntl.LOCK_EX):
        later = [path for path in complete(run) if path.name > name_of(step)]
        if whatever_is_left or len(later) < len(complete(run)):
            for path in later:
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(_OLD + path.name))
            _remove_unfinished(run)


@contextlib.contextmanager
def mark_save(run: Path) -> Iterator[None]:
    """Around a rank's part of a save: until it ends, or the process does, :func:`sweep` leaves the run alone."""
    with contextlib.suppress(OSError):
        (run / CHECKPOINTS).mkdir(exist_ok=True)
    with _locked_if_possible(run, fcntl.LOCK_SH):  # a file system without locks is not swept either
        yield


def sweep(run: Path) -> None:
    """Remove what saves left that were killed; nothing while any process is writing to this run's checkpoints."""
    with contextlib.suppress(OSError), _hold_lock(run, fcntl.LOCK_EX | fcntl.LOCK_NB):
        _remove_unfinished(run)


@contextlib.contextmanager
def _locked_if_possible(run: Path, operation: int) -> Iterator[None]:
    """As below, where the file system has locks and the run has checkpoints."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(_hold_lock(run, operation))
        yield


@contextlib.contextmanager
def _hold_lock(run: Path, operation: int) -> Iterator[None]:
    """Hold the lock of a run's checkpoints; the system lets go of it when the process dies."""
    opened = os.open(run / CHECKPOINTS / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(opened, operation)
        yield
    finally:
        os.close(opened)


def _remove_unfinished(run: Path) -> None:
    """What was not written, or not removed, to the end; a run's saves follow each other, so no other is under way."""
    for name in (_SAVING, _OLD):
        for path in (run / CHECKPOINTS).glob(f"{name}*"):
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _force(folder: Path) -> None:
    """A rename is only on the disk once its folder is."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
