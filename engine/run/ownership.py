"""Who owns a run or a study, and whether that process still lives. No torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Owner:
    """A process for good: its number, when it began (Unix time), and its host; None where nobody noted it."""

    pid: int
    start_time: float
    host: str | None = None


def identity(pid: int) -> Owner:
    """What names a process for good: pids come back, so the start time is part of it."""
    return Owner(pid, psutil.Process(pid).create_time(), socket.gethostname())


def this_process() -> Owner:
    """This process as an owner."""
    return identity(os.getpid())


def is_alive(owner: Owner | None) -> bool:
    """Whether an owner is still running; one on another host is believed to be."""
    if owner is None:
        return False
    if owner.host != socket.gethostname():
        return True
    try:
        process = psutil.Process(owner.pid)
        return bool(abs(process.create_time() - owner.start_time) < 1.0) and is_running(owner.pid)
    except psutil.Error:
        return False


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this host that still does something: a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
