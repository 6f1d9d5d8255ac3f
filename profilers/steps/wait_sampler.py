"""Looks now and then where the training thread stands, so that waits need not be told one by one.

A wait for a collective lasts microseconds, and there are hundreds in a step: to tell each would cost more than to
record it. A second thread instead looks at the training thread's frame. Of our own functions it knows those that are
marked. In torch's layers (FSDP2, functional collectives, compiled code) it looks which line or operator runs.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self, TypeVar

import torch

from profilers import torch_private
from profilers.steps.rank_status import RankStatus
from profilers.steps.timer import StepTimer

#: How often it looks. A wait is told when two looks in a row find it.
PERIOD_SECONDS = 0.5

F = TypeVar("F", bound=Callable[..., Any])

_waits: set[CodeType] = set()
_DISTRIBUTED = str(Path(torch.distributed.__file__).parent) + "/"
#: The training thread stands here during a backward pass, whose hooks run on threads of autograd's own on a GPU.
_backwards: set[CodeType] = {torch_private.BACKWARD}
_OPERATORS = torch_private.OPERATORS_FILE
#: In a line of ``torch.distributed``: for a work, a future or a store.
_WAIT = ".wait("
#: In the name of an operator: for a tensor that is on its way.
_WAIT_TENSOR = "c10d_functional.wait_tensor"


def waits_here(function: F) -> F:
    """Marks a function whose own body stands waiting for other ranks and does nothing else that takes long."""
    _waits.add(function.__code__)
    return function


def is_waiting(frame: FrameType) -> bool:
    """Whether a thread whose innermost frame this is stands waiting for other ranks."""
    if frame.f_code in _waits:
        return True
    file = frame.f_code.co_filename
    if file.startswith(_DISTRIBUTED):
        return _WAIT in linecache.getline(file, frame.f_lineno)
    return file == _OPERATORS and _WAIT_TENSOR in str(frame.f_locals.get("self"))


def _ours() -> set[int | None]:
    """Threads that Python code started; those of autograd are dummies at most."""
    return {
        thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)
    }


class WaitSampler:
    """Tells ``status`` about the thread that made this object, while it is entered."""

    def __init__(self, timer: StepTimer, status: RankStatus) -> None:
        self._timer, self._status = timer, status
        self._thread_id = threading.get_ident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wait-sampler", daemon=True)
        self._seen: tuple[int, int | None, bool] | None = None
        self._seen_at, self._told = 0.0, False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        """One look."""
        noted = self._timer.noted_count
        if noted is None:
            self._seen = None
            return
        state = self._timer.step, noted, self._is_waiting()
        if state != self._seen:
            self._seen, self._seen_at, self._told = state, time.monotonic(), False
            self._status.tell_moving(self._seen_at)
        elif state[-1] and not self._told:
            self._told = True
            self._status.tell_waiting(self._seen_at)

    def _is_waiting(self) -> bool:
        frames = sys._current_frames()
        # Among them is this function's own, which holds the dictionary: a circle that would keep all frames, and with
        # them every tensor that the training thread's functions hold now, until Python's collector comes by.
        frames.pop(threading.get_ident(), None)
        frame = frames.pop(self._thread_id, None)
        if frame is None:
            return False
        if frame.f_code in _backwards:
            return any(is_waiting(frame) for thread, frame in frames.items() if thread not in _ours())
        return is_waiting(frame)

    def _run(self) -> None:
        while not self._done.wait(PERIOD_SECONDS):
            self.look()
