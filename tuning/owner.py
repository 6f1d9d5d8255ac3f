"""Who runs a study: a process, named by pid, start time and host, that holds the study's folder."""

from __future__ import annotations

import fcntl
import socket
import time
from pathlib import Path
from typing import Any

from engine import ownership, rundir
from engine.errors import InputError

LOCK = ".lock"
#: An owner on another host cannot be seen; it counts as alive while its status is fresh.
FRESH_SECONDS = 60.0
HELD = ("running", "paused", "stopping")


def is_alive(status: dict[str, Any] | None) -> bool:
    """Whether the owner that a study's status names still runs it."""
    owner = (status or {}).get("owner")
    if not status or not isinstance(owner, dict) or status.get("state") not in HELD:
        return False
    if owner.get("host") != socket.gethostname():
        return time.time() - float(status.get("updated_unix") or 0.0) < FRESH_SECONDS
    return ownership.alive(owner)


def take(folder: Path) -> dict[str, Any]:
    """Make this process the owner of a study; returns what names it.

    Raises:
        InputError: another live process owns the study, or the folder cannot be written.
    """
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held only while deciding: two starts at once must not both win
            status = rundir.read_json(folder / rundir.STATUS)
            if is_alive(status):
                raise InputError("study", folder.name, _busy(folder.name, (status or {})["owner"]))
            owner = ownership.me()
            fresh = {"state": "running", "owner": owner, "updated_unix": time.time(), "current_run": None}
            rundir.write_json(folder / rundir.STATUS, (status or {}) | fresh)
            return owner
    except OSError as error:
        remedy = f"the study's folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(folder), remedy) from None


def _busy(name: str, owner: dict[str, Any]) -> str:
    where = f"process {owner.get('pid')} on {owner.get('host')}"
    return f"is already being run by {where}; watch it, or end it with: workbench stop {name}"
