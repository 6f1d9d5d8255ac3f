"""One warm process, the pipe its tasks go through, and the pipe it dies with."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

_DISMISS_SECONDS = 1.0


@dataclass(slots=True)
class Worker:
    """A worker as the controller sees it."""

    process: ForkServerProcess
    tasks: Connection
    lifeline: Connection
    namespace: str | None = None
    runs: int = 0

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
