"""How an imported study comes into a home: unpacked aside, made certain by one rename, then moved into its places.

Before that rename a kill leaves only leftovers, which the next look removes; after it, the next look ends the moving.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.config.errors import InputError
from tuning.storage import study_folder
from workbench.home.transfer.manifest import RUNS, STUDIES

IMPORTS = ".imports"
_LOCK, _NEW, _READY = ".lock", "new-", "ready-"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


@contextlib.contextmanager
def import_folder(home: Path) -> Iterator[Path]:
    """A folder to unpack into, on the same disk; one import at a time. What is left in it is removed.

    Raises:
        InputError: the home folder cannot be written, or is full.
    """
    try:
        imports = home / IMPORTS
        imports.mkdir(parents=True, exist_ok=True)
        with (imports / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _finish(home)
            place = imports / f"{_NEW}{secrets.token_hex(4)}"
            try:
                for part in (STUDIES, RUNS):
                    (place / part).mkdir(parents=True)
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        remedy = (
            f"cannot be written ({error.strerror}); nothing was imported: free space or give another --home"
        )
        raise InputError("home", str(home), remedy) from None


def commit_import(home: Path, place: Path) -> None:
    """Let everything in ``place`` become part of the home. Call it inside :func:`import_folder`.

    Raises:
        InputError: a study of its name began just now.
    """
    for folder in (place / STUDIES, place / RUNS, place):
        _flush(folder)
    ready = place.with_name(place.name.replace(_NEW, _READY, 1))
    place.rename(ready)
    if taken_names := _move(home, ready):
        remedy = (
            "a study of this name was started here meanwhile, and was not touched; give another: --name OTHER"
        )
        raise InputError("name", taken_names[0], remedy)


def finish(home: Path) -> None:
    """End what an import began that was killed: move what was certain, remove what was not. Never raises."""
    imports = home / IMPORTS
    with contextlib.suppress(OSError):
        if not imports.is_dir() or not _leftovers(imports):
            return
        with (imports / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held: an import goes on, and ends it itself
            _finish(home)


def _leftovers(imports: Path) -> list[Path]:
    return [path for path in imports.iterdir() if path.name.startswith((_NEW, _READY))]


def _finish(home: Path) -> None:
    for path in _leftovers(home / IMPORTS):
        if path.name.startswith(_READY):
            _move(home, path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _move(home: Path, ready: Path) -> list[str]:
    """The study's newest name first, for it has all trials; names of studies that somebody else has taken."""
    (home / study_folder.STUDIES).mkdir(exist_ok=True)
    newest = sorted((ready / STUDIES).iterdir(), key=lambda path: (len(path.name), path.name), reverse=True)
    taken_names = [
        folder.name for folder in newest if not _put(folder, home / study_folder.STUDIES / folder.name)
    ]
    for folder in sorted((ready / RUNS).iterdir()):
        _put(folder, home / folder.name)
    shutil.rmtree(ready, ignore_errors=True)
    return taken_names


def _put(folder: Path, target: Path) -> bool:
    """False if something has this name already: it stays, for renaming does not replace what is not empty."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
