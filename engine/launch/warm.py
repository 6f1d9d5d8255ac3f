"""One warm process, the pipe its tasks go through, and the pipe it dies with."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import psutil

_DISMISS_SECONDS = 1.0
#: What multiprocessing takes for the exit code of a process whose fork server is gone.
_UNTOLD = 255


@dataclass(slots=True)
class Worker:
    """A worker as the controller sees it."""

    process: ForkServerProcess
    tasks: Connection
    lifeline: Connection
    namespace: str | None = None
    #: Environment variables that it was given when it was forked.
    variables: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    @property
    def orphaned(self) -> bool:
        """Whether it lives without the server that forked it, which would have told of its end."""
        pid = self.process.pid
        return self.process.exitcode == _UNTOLD and pid is not None and _lives(pid)

    def dismiss(self) -> None:
        """Ask the process to end by closing its tasks, without waiting for it."""
        self.tasks.close()
        self.process.join(timeout=_DISMISS_SECONDS)

    def kill(self) -> None:
        """End the process whatever it is doing, even stopped."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(timeout=5.0)
        self.tasks.close()
        self.lifeline.close()


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
