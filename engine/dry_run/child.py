"""A question to a process of its own, forked from a server that has torch loaded: the one that asks never loads it."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from engine.config.errors import InputError, WorkbenchError
from engine.launch.workers import begin

PATIENCE_SECONDS = 300.0
#: The first is what ranks that train are forked with: whoever starts the server first serves both.
PRELOAD = ["engine.launch.preload", "engine.dry_run.rank"]


class ChildError(WorkbenchError):
    """No answer; says why in one line."""


def ask(function: str, about: Sequence[Any], patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """What ``MODULE:FUNCTION`` returns for some arguments. What it prints is dropped: it may be a person's code.

    Raises:
        InputError: the function raised it.
        ChildError: it raised something else, its process died, or it takes too long.
    """
    methods = multiprocessing.get_context("forkserver")
    methods.set_forkserver_preload(PRELOAD)
    pipe, theirs = methods.Pipe(duplex=False)
    process = methods.Process(target=_answer, args=(theirs, function, tuple(about)), daemon=True)
    begin(process)
    theirs.close()
    try:
        if not pipe.poll(patience_seconds):
            raise ChildError(f"no answer within {patience_seconds:.0f} s")
        good, answer = pipe.recv()
    except EOFError:
        process.join()
        raise ChildError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        pipe.close()
    if good:
        return answer
    raise InputError(*answer) if isinstance(answer, tuple) else ChildError(answer)


def _answer(pipe: Connection, function: str, about: tuple[Any, ...]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    with contextlib.suppress(OSError):
        try:
            module, _, name = function.partition(":")
            pipe.send((True, getattr(importlib.import_module(module), name)(*about)))
        except InputError as error:
            pipe.send((False, (error.field, error.value, error.remedy)))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            pipe.send((False, f"{type(error).__name__}: {reason}"))
