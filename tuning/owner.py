"""Who runs a study: a process, named by pid, start time and host, that holds the study's folder."""

from __future__ import annotations

import fcntl
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from tuning.crew import FRESH_SECONDS, Member, present, words

LOCK = ".lock"
HELD = ("running", "paused", "stopping")


def is_alive(status: dict[str, Any] | None) -> bool:
    """Whether the owner that a study's status names still runs it, or another controller on the same folder."""
    if not status or status.get("state") not in HELD:
        return False
    others = [member for member in status.get("controllers") or () if member.get("here")]
    return any(_lives(owner, status) for owner in (status.get("owner"), *others))


def _lives(owner: Any, status: dict[str, Any]) -> bool:
    if not isinstance(owner, dict):
        return False
    if owner.get("host") != socket.gethostname():
        return time.time() - float(status.get("updated_unix") or 0.0) < FRESH_SECONDS
    return ownership.alive(owner)


def take(folder: Path, join: bool = False, ways: str = "with --join") -> Member:
    """Make this process the owner of a study, or one of them where it may ``join`` others; returns what names it.
    ``ways``: how else one would work on it together.

    Raises:
        InputError: another live process owns the study, or the folder cannot be written.
    """
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held only while deciding: two starts at once must not both win
            status = run_folder.read_json(folder / run_folder.STATUS)
            others, owner = present(folder), ownership.me()
            if is_alive(status) and not others:
                others = [(status or {})["owner"]]
            if others and not join:
                raise busy(folder.name, others[0], ways)
            if others:
                return owner
            fresh = {"state": "running", "owner": owner, "updated_unix": time.time(), "current_run": None}
            run_folder.write_json(folder / run_folder.STATUS, (status or {}) | fresh)
            return owner
    except OSError as error:
        remedy = f"the study's folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(folder), remedy) from None


def give_up(folder: Path) -> None:
    """After :func:`take`, when a study could not begin: nobody runs it, unless others do."""
    status = run_folder.read_json(folder / run_folder.STATUS)
    if status is not None and not present(folder):
        with suppress(OSError):
            run_folder.write_json(folder / run_folder.STATUS, status | {"state": "interrupted"})


def busy(name: str, owner: Member, ways: str) -> InputError:
    """That somebody runs a study already."""
    remedy = f"watch it, work on it together {ways}, or end it with: workbench stop {name}"
    return InputError("study", name, f"is already being run by {words(owner)}; {remedy}")
