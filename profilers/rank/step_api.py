"""What a job says itself of its steps: ``with profilers.recording() as recorded`` and ``recorded.step()``."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import torch.distributed as dist

from profilers.rank import attachment
from profilers.rank.recording import JobSteps
from profilers.rank.step_records import StepReport

#: Where a tuner that started this process reads its steps, one JSON document a line (``engine.rank.foreign``).
TOLD_VARIABLE, TOLD = "WORKBENCH_FOLDER", "trainer.jsonl"


class StepRecording:
    """The steps of one rank, as its loop tells them; the first one begins with the block.

    They go to the records of a recorded job, and those of rank 0 to a tuner that started it; without either it does
    nothing. ``tokens`` are those of a step on all ranks; without them there is no rate of tokens.
    """

    def __init__(self, tokens: int | None = None) -> None:
        self._tokens = tokens
        self._steps: JobSteps | None = None
        self._told: ToldSteps | None = None

    def __enter__(self) -> StepRecording:
        rank = attachment.process_recording()
        if rank is not None:
            rank.exact = True
            self._steps = rank.steps()
            if self._tokens is not None:
                rank.seat.tell(tokens_per_step=self._tokens)
            self._steps.begin(())
        if folder := os.environ.get(TOLD_VARIABLE):
            self._told = ToldSteps(Path(folder), self._tokens)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._steps is not None:
            self._steps.discard()
        if self._told is not None:
            self._told.close()

    def step(self, loss: float | None = None) -> None:
        """A step ends here, and the next one begins; ``loss`` is this rank's."""
        if self._steps is None and self._told is None:
            return
        value = None if loss is None else float(loss)
        if self._steps is not None:
            self._steps.end_step(StepReport(None, value, None))
        if self._told is not None:
            self._told.end_step(value)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around an evaluation or a checkpoint, right after ``step()``: no part of any step."""
        with contextlib.nullcontext() if self._steps is None else self._steps.timer.aside():
            yield
        if self._steps is not None:
            self._steps.restart_step()
        if self._told is not None:
            self._told.begin()


class ToldSteps:
    """Steps of rank 0 as lines of a tuner's file, unless the loop tells it of them itself.

    Nothing that goes wrong here ends the job.
    """

    def __init__(self, folder: Path, tokens: int | None) -> None:
        self._path, self._tokens = folder / TOLD, tokens
        self._file: IO[str] | None = None
        self._silent, self._number = False, 0
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def end_step(self, loss: float | None) -> None:
        """A step ends, and the next one begins."""
        now = time.perf_counter()
        event = {"event": "step", "step": self._number, "seconds": now - self._began, "tokens": self._tokens,
                "loss": loss}  # fmt: skip
        try:
            self._write(json.dumps(event) + "\n")
        except OSError:
            self._silent = True
        self._number += 1
        self._began = now

    def _write(self, line: str) -> None:
        if self._file is None and not self._silent:  # by now it is known who is rank 0, and who else tells
            self._silent = _rank() != 0 or _tells_itself(self._path)
        if self._silent:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._file.write(line)

    def close(self) -> None:
        """The block is over."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _rank() -> int:
    is_distributed = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if is_distributed else int(os.environ.get("RANK", "0"))


def _tells_itself(path: Path) -> bool:
    """Whether the loop follows the whole protocol: it says first what it begins with."""
    try:
        with path.open(encoding="utf-8") as file:
            return bool(json.loads(file.readline()).get("event") == "begin")
    except (OSError, ValueError, AttributeError):
        return False
