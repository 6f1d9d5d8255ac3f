"""Warm worker processes, and the fork servers they come from.

A worker has a pipe for its tasks and a pipe it dies with. There is one server for each set of variables that a
program reads as it starts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from engine.run.processes import is_running

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
        return self.process.exitcode == _UNTOLD and pid is not None and is_running(pid)

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


#: Imported by a server only: importing it elsewhere would freeze the controller's objects.
PRELOAD = ["engine.launch.preload"]
#: A server has torch loaded; of those with variables of their own so many are kept.
_KEPT = 3
_SWITCHING = threading.Lock()

Variables = tuple[tuple[str, str], ...]


class ForkServers:
    """Starts processes with variables that were there when their program began, as the C library's allocator needs.

    A server loads torch once, in seconds; each process after that is a fork, in milliseconds.
    """

    def __init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._own: dict[Variables, forkserver.ForkServer] = {}

    def pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        """Two ends of a pipe."""
        return self._context.Pipe(duplex)

    def start(
        self, target: Callable[..., object], arguments: tuple[Any, ...], at_start: Mapping[str, str]
    ) -> ForkServerProcess:
        """A new process that runs ``target``; its program began with the variables ``at_start``."""
        process = self._context.Process(target=target, args=arguments, daemon=True)
        with self._use_server(tuple(sorted(at_start.items()))):
            begin(process)
        return process

    def close(self) -> None:
        """End the servers with variables of their own; whoever was forked from them has ended."""
        while self._own:
            _end(self._own.pop(next(iter(self._own))))

    @contextlib.contextmanager
    def _use_server(self, at_start: Variables) -> Iterator[None]:
        """While inside, processes come from the server with these variables."""
        if not at_start:
            yield
            return
        server = self._own.pop(at_start, None) or _make_server()
        self._own[at_start] = server  # the last used is the last
        while len(self._own) > _KEPT:
            _end(self._own.pop(next(iter(self._own))))
        usual = forkserver.connect_to_new_process
        # multiprocessing knows one server only, and asks this function of its module for each process.
        with _SWITCHING, _environment(dict(at_start)):
            vars(forkserver)["connect_to_new_process"] = server.connect_to_new_process
            try:
                yield
            finally:
                vars(forkserver)["connect_to_new_process"] = usual


def begin(process: ForkServerProcess) -> None:
    """Start a process, and the server if there is none yet: what lies where somebody happens to be, say their
    ``timeit.py``, must not be taken for a module of Python's.
    """
    with _environment({"PYTHONSAFEPATH": "1"}):
        process.start()


def _make_server() -> forkserver.ForkServer:
    server = forkserver.ForkServer()
    server.set_forkserver_preload(PRELOAD)
    return server


def _end(server: forkserver.ForkServer) -> None:
    """Kill it, so that nobody waits for it; then let go of it."""
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        server._stop()  # type: ignore[attr-defined]


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """A server that is started meanwhile inherits these."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
