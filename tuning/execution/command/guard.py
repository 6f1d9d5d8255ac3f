"""The process between a study and a trainer: nothing that the trainer started outlives it.

``python -m tuning.execution.command.guard``; the first line of stdin is a JSON object with ``words``, ``directory`` and
``variables``. A line ``stop SECONDS`` ends the trainer, and so does the end of stdin, that is of whoever started this.
stdout tells, as JSON lines, of its start or why there was none, and of its end: ``exit`` and who was ``left`` running.
The trainer's output goes to stderr, with ``OVER`` at the place where it ended well. Orphans of the trainer become
children of this process, whatever session they are in, and are killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

from engine.run.child_process import readable

#: Among what is printed, where the trainer's own process ended well: what comes later is somebody's who goes on.
OVER = b"\n\0over\n"
_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_POLL_SECONDS = 0.02
#: What a trainer leaves behind may take so long to end by itself.
_GRACE_SECONDS = 1.0
#: After a lost parent, and where nobody says how long.
_PATIENCE_SECONDS = 3.0
_KILLING_SECONDS = 10.0


class Guard:
    """One trainer from its start to the end of all of its processes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._child = subprocess.Popen(
            order["words"], cwd=order["directory"], env=os.environ | order["variables"], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
        )  # fmt: skip
        self._code: int | None = None
        self._kill_at: float | None = None

    def follow(self) -> None:
        """Until the trainer is over; then whatever it left running is told of and killed."""
        tell(started=self._child.pid)
        while self._any_child() and self._code is None:
            self._listen()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                break
        is_ending = self._kill_at is not None
        if not is_ending and self._code == 0:
            _write(2, OVER)
        surviving = [] if is_ending else self._surviving_processes()
        self._kill_all()
        tell(exit=self._code, left=surviving)

    def _any_child(self) -> bool:
        """Whether anything of the trainer is left: whoever loses its parent becomes a child of this process, so the
        kernel knows. A list of processes could miss one that is just being handed over.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._child.pid:
                    self._code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def _listen(self) -> None:
        """Whether it shall end; ``stop`` and the end of stdin say so, once."""
        if self._kill_at is not None:
            time.sleep(_POLL_SECONDS)
            return
        if not readable(0, _POLL_SECONDS):
            return
        words = os.read(0, 4096).split()
        patience = float(words[1]) if len(words) > 1 else _PATIENCE_SECONDS
        self._kill_at = time.monotonic() + patience
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGTERM)

    def _surviving_processes(self) -> list[str]:
        """The names of processes that go on though the trainer's own ended."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._any_child():
            if time.monotonic() > deadline:
                return [_name(process) for process in _descendants()] or ["a process"]
            time.sleep(_POLL_SECONDS)
        return []

    def _kill_all(self) -> None:
        deadline = time.monotonic() + _KILLING_SECONDS
        while self._any_child() and time.monotonic() < deadline:
            for process in _descendants():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(_POLL_SECONDS)


def tell(**message: Any) -> None:
    """To whoever started this, if it is still there."""
    _write(1, (json.dumps(message) + "\n").encode())


def _write(descriptor: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, text)


def _descendants() -> list[psutil.Process]:
    """All processes below this one that are not over."""
    processes = psutil.Process().children(recursive=True)
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "a process"


def _adopt_orphans() -> None:
    """On Linux; elsewhere those in another session may get away."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> int:
    """Follow the trainer that stdin tells of."""
    order = json.loads(os.fdopen(os.dup(0), "rb", buffering=0).readline())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _adopt_orphans()
    try:
        guard = Guard(order)
    except OSError as problem:
        tell(failed=f"{problem.strerror}: {problem.filename}")
        return 1
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    guard.follow()
    return 0


if __name__ == "__main__":
    sys.exit(main())
