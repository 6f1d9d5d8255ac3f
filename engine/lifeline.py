"""A process that dies with its controller, even while it is stopped or holds the interpreter lock."""

from __future__ import annotations

import fcntl
import os
import signal
import threading


def die_with(lifeline: int) -> None:
    """Kill this process when the other end of a pipe closes; nothing is ever written to that pipe.

    The fork server, not the controller, is a rank's parent, so the parent-death signal would watch the wrong
    process. On Linux the kernel itself sends SIGKILL when the pipe changes; elsewhere a thread watches it.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="lifeline").start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)
