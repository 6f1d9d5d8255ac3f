"""A process of a job that is not ours becomes a recorded rank: when it joins its ranks, or its first optimizer steps.

Until then nothing of torch is touched but two doors, so that launchers and workers of data loaders stay as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from profilers.rank.job_rank import RankRegistration, claim

if TYPE_CHECKING:
    from profilers.rank.recording import RankRecording

#: The folder of the run; without it nothing is recorded.
FOLDER_VARIABLE = "WORKBENCH_RECORD"
Tell = Callable[[str], None]


class ProcessAttachment:
    """Where a process comes in, once. ``tell`` says why one is not recorded."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._closed = False
        self._recording: RankRecording | None = None
        # Neither is ever taken out: torch may be going through its hooks just then.
        register_optimizer_step_pre_hook(self._steps)
        register_optimizer_step_post_hook(self._after_optimizer)
        if dist.is_available():
            self._wrap_init(dist.init_process_group)
        os.register_at_fork(after_in_child=self._close)

    def enter(self) -> RankRecording | None:
        """What records this process; None if nothing does. Whatever goes wrong is told, and the job goes on."""
        if not self._closed:
            self._close()
            try:
                self._recording = self._start_recording()
            except Exception as error:  # a foreign job is never ended from here
                self._tell(_words(error))
        return self._recording

    def _start_recording(self) -> RankRecording | None:
        from profilers.rank.recording import RankRecording

        is_distributed = dist.is_available() and dist.is_initialized()
        rank, size = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
        backend = str(dist.get_backend()) if is_distributed else "none"
        folder = Path(os.environ[FOLDER_VARIABLE])
        seat = claim(folder, rank, size, backend=backend, torch=str(torch.__version__))
        if not isinstance(seat, RankRegistration):
            self._tell(seat)
            return None
        recording = RankRecording(seat)
        atexit.register(recording.close)
        sys.excepthook = functools.partial(_note_exception, sys.excepthook, recording)
        os.register_at_fork(after_in_child=recording.forget)
        return recording

    def _wrap_init(self, init: Any) -> None:
        @functools.wraps(init)
        def joins(*arguments: Any, **named: Any) -> Any:
            if not self._closed:
                self._prepare()
            result = init(*arguments, **named)
            self.enter()
            return result

        for module in (dist, dist.distributed_c10d):
            setattr(module, init.__name__, joins)

    def _prepare(self) -> None:
        with contextlib.suppress(ImportError):  # it is told on entry
            from profilers.collectives import flight_recorder

            flight_recorder.arm()

    def _steps(self, optimizer: Any, *_: Any) -> None:
        recording = self.enter()
        if recording is not None:
            with self._guard_job(recording):
                recording.optimizer_began(optimizer)

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._recording is not None:
            with self._guard_job(self._recording):
                self._recording.end_optimizer(optimizer)

    @contextlib.contextmanager
    def _guard_job(self, recording: RankRecording) -> Iterator[None]:
        """A mistake of ours ends the recording, not the job."""
        try:
            yield
        except Exception as error:
            self._recording = None
            recording.give_up()
            self._tell(_words(error))

    def _close(self) -> None:
        self._closed = True


def _words(error: Exception) -> str:
    missing = error.name if isinstance(error, ImportError) else None
    if missing is not None:
        return f"{missing} is missing: pip install {missing}"
    return "".join(traceback.format_exception_only(error))


_door: list[ProcessAttachment] = []


def arm(tell: Tell) -> None:
    """To be called once torch is loaded."""
    _door[:] = [ProcessAttachment(tell)]


def process_recording() -> RankRecording | None:
    """What records this process, from now on at the latest; None outside ``workbench run``."""
    return _door[0].enter() if _door else None


def _note_exception(before: Any, recording: RankRecording, kind: Any, error: Any, trace: Any) -> None:
    """An exception that nobody caught: what it says is noted, and shown as always."""
    with contextlib.suppress(Exception):
        recording.record_failure(error)
    before(kind, error, trace)
