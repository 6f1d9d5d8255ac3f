"""How the system shares cores among the threads of ranks."""

from __future__ import annotations

import contextlib
import os


def yield_to_running_threads() -> None:
    """A thread of this process that wakes up waits for the running one's time slice to end; Linux only.

    To be called before the first process group: threads inherit it. gloo's event thread spins while another thread
    holds a connection's lock. Under the usual policy it pushes that thread off the core when it wakes, and spins for
    a whole time slice: on busy cores, more than the rest of a tensor-parallel step.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then steps are slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
