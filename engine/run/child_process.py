"""Child processes that run another program of this Python: how they are started, heard and ended.

Ranks are not started here: they are forked from a server that has torch loaded (:mod:`engine.launch.workers`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).parents[2]
#: A file, or one of the constants of ``subprocess``; None is what the parent has.
Stream = IO[bytes] | int | None


def start(
    arguments: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    variables: Mapping[str, str] | None = None,
    own_session: bool = True,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start this Python with ``arguments``, and with ``variables`` on top of this process's environment.

    In a session of its own the child gets no Ctrl-C and no hang-up of this process's terminal, and it leads a process
    group, which ``kill`` ends as a whole. It has the descriptors to ``keep`` open, too, by the same numbers.

    Raises:
        OSError: there is no such program, or no process can be started.
    """
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],  # -P: a folder `engine` where somebody happens to be is not ours
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=os.environ | dict(variables or {}),
        start_new_session=own_session,
        pass_fds=keep,
    )


def package_path() -> dict[str, str]:
    """The variable with which a child finds these packages also where they are not installed."""
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the other end of a pipe is closed, within so many seconds.

    ``select()`` would refuse numbers above 1,023, which a process that has much open comes to.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


def end(
    process: subprocess.Popen[bytes], patience_seconds: float, request: signal.Signals | None = signal.SIGTERM
) -> bool:
    """Send ``request`` to a child and wait for its end; ``kill`` it if that takes longer than ``patience_seconds``.

    A child that was asked in another way, say by closing its input, gets no ``request``. Returns whether the child
    ended without being killed from here; what it started is then its own affair.
    """
    if request is not None:
        process.send_signal(request)
    try:
        process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        return False
    _close_input(process)
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child, even a stopped one, and wait for its end; with a session of its own, all that is left of its group,
    also when the child itself has ended.
    """
    kill_group(process.pid)
    process.kill()  # one without a group of its own
    process.wait()
    _close_input(process)


def kill_group(leader: int) -> None:
    """Kill all processes of the group that a process leads or led; nothing happens if there is no such group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
