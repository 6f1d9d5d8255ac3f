"""Who owns a run or a study, and whether that process still lives. No torch."""

from __future__ import annotations

import os
import socket
from typing import Any

import psutil


def identity(pid: int) -> dict[str, Any]:
    """What names a process for good: pids come back, so the start time is part of it."""
    return {"pid": pid, "start_time": psutil.Process(pid).create_time(), "host": socket.gethostname()}


def me() -> dict[str, Any]:
    """This process as an owner."""
    return identity(os.getpid())


def alive(owner: dict[str, Any] | None) -> bool:
    """Whether an owner is still running; one on another host is believed to be."""
    if not owner:
        return False
    if owner.get("host") != socket.gethostname():
        return True
    try:
        process = psutil.Process(owner["pid"])
        return bool(abs(process.create_time() - owner["start_time"]) < 1.0) and process.status() != "zombie"
    except (psutil.Error, KeyError, TypeError):
        return False
