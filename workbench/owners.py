"""Processes as owners of runs, studies and jobs."""

from __future__ import annotations

import socket
from typing import Any

import psutil

from engine.ownership import alive

__all__ = ["alive", "identity"]


def identity(pid: int) -> dict[str, Any]:
    """What names a process for good: its pid can be reused, its start time cannot."""
    return {"pid": pid, "start_time": psutil.Process(pid).create_time(), "host": socket.gethostname()}
