"""A question to a process of its own, forked from a server that has torch loaded: the one that asks never loads it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import re
import signal
import sysconfig
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.config.errors import InputError, WorkbenchError
from engine.launch.workers import begin
from engine.run.child_process import kill_group, readable
from engine.run.processes import die_with

PATIENCE_SECONDS = 300.0
#: After so long somebody who waits is told that it takes long.
SLOW_SECONDS = 10.0
_TELLING_SECONDS = 2.0
_MOST_BYTES = 1 << 16
#: A line of what ``faulthandler`` writes, the innermost call first.
_CALL = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OURS = Path(__file__).parents[1]
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
#: The first is what ranks that train are forked with: whoever starts the server first serves both.
PRELOAD = ["engine.launch.preload", "engine.dry_run.rank"]


class ChildError(WorkbenchError):
    """No answer; says why in one line."""


class UnansweredError(ChildError):
    """It takes too long; says where it is."""


def ask(
    function: str,
    arguments: Sequence[Any],
    patience_seconds: float = PATIENCE_SECONDS,
    slow: Callable[[], None] | None = None,
) -> Any:
    """What ``MODULE:FUNCTION`` returns for some arguments. What it prints is dropped: it may be a person's code.
    ``slow`` is called once if it takes long. Nothing that it started outlives the answer.

    Raises:
        InputError: the function raised it.
        ChildError: it raised something else, its process died, or it takes too long.
    """
    methods = multiprocessing.get_context("forkserver")
    methods.set_forkserver_preload(PRELOAD)
    pipe, answers = methods.Pipe(duplex=False)
    calls, writes = methods.Pipe(duplex=False)
    lifeline, kept_end = methods.Pipe(duplex=False)
    ends = (answers, writes, lifeline)
    process = methods.Process(target=_answer, args=(*ends, function, tuple(arguments)), daemon=True)
    begin(process)
    for end in ends:
        end.close()
    try:
        if not _wait_for_answer(pipe, patience_seconds, slow):
            place = _stands_at(process.pid, calls)
            raise UnansweredError(f"no answer within {patience_seconds:g} s{place and f'; it is at {place}'}")
        good, answer = pipe.recv()
    except EOFError:
        process.join()
        raise ChildError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        if process.pid is not None:
            kill_group(process.pid)
        for end in (pipe, calls, kept_end):
            end.close()
    if good:
        return answer
    raise InputError(*answer) if isinstance(answer, tuple) else ChildError(answer)


def _wait_for_answer(pipe: Connection, patience_seconds: float, slow: Callable[[], None] | None) -> bool:
    if slow is None or patience_seconds <= SLOW_SECONDS:
        return pipe.poll(patience_seconds)
    if pipe.poll(SLOW_SECONDS):
        return True
    slow()
    return pipe.poll(patience_seconds - SLOW_SECONDS)


def _stands_at(pid: int | None, calls: Connection) -> str:
    """The line that a process is at: the innermost one that is neither a library's nor ours, if there is one."""
    if pid is None:
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    written = b""
    while b"in _answer\n" not in written and readable(calls.fileno(), _TELLING_SECONDS):
        chunk = os.read(calls.fileno(), _MOST_BYTES)
        written += chunk
        if not chunk:
            break
    matches = list(_CALL.finditer(written.decode(errors="replace")))
    ours = (call for call in matches if not call["file"].startswith((*_LIBRARIES, "<", str(_OURS))))
    frame = next(ours, matches[0] if matches else None)
    return f"{frame['file']}:{frame['line']} in {frame['function']}" if frame else ""


def _answer(
    pipe: Connection, calls: Connection, lifeline: Connection, function: str, arguments: tuple[Any, ...]
) -> None:
    """In a process group of its own, which ends with whoever asks."""
    os.setpgid(0, 0)
    faulthandler.register(signal.SIGUSR1, calls, all_threads=False)
    die_with(lifeline.fileno())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with contextlib.suppress(OSError):
        try:
            module, _, name = function.partition(":")
            pipe.send((True, getattr(importlib.import_module(module), name)(*arguments)))
        except InputError as error:
            pipe.send((False, (error.field, error.value, error.remedy)))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            pipe.send((False, f"{type(error).__name__}: {reason}"))
