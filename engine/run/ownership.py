"""Who owns a run or a study, and whether that process still lives. No torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, TypedDict

import psutil


class Owner(TypedDict):
    """A process for good: its number, when it began (Unix time), and its host."""

    pid: int
    start_time: float
    host: str


def identity(pid: int) -> Owner:
    """What names a process for good: pids come back, so the start time is part of it."""
    return {"pid": pid, "start_time": psutil.Process(pid).create_time(), "host": socket.gethostname()}


def this_process() -> Owner:
    """This process as an owner."""
    return identity(os.getpid())


def is_alive(owner: Mapping[str, Any] | None) -> bool:
    """Whether an owner, as some file has it, is still running; one on another host is believed to be."""
    if not owner:
        return False
    if owner.get("host") != socket.gethostname():
        return True
    try:
        process = psutil.Process(owner["pid"])
        return bool(abs(process.create_time() - owner["start_time"]) < 1.0) and is_running(owner["pid"])
    except (psutil.Error, KeyError, TypeError):
        return False


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this host that still does something: a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
