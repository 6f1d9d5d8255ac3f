"""What a job says itself of its steps: ``with profilers.recording() as recorded`` and ``recorded.step()``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from profilers.rank import attachment
from profilers.rank.recording import JobSteps
from profilers.rank.step_records import StepReport


class StepRecording:
    """The steps of one rank, as its loop tells them; the first one begins with the block.

    Outside a recorded job it does nothing. ``tokens`` are those of a step on all ranks; without them there is no rate
    of tokens.
    """

    def __init__(self, tokens: int | None = None) -> None:
        self._tokens = tokens
        self._steps: JobSteps | None = None

    def __enter__(self) -> StepRecording:
        rank = attachment.process_recording()
        if rank is not None:
            rank.exact = True
            self._steps = rank.steps()
            if self._tokens is not None:
                rank.seat.tell(tokens_per_step=self._tokens)
            self._steps.begin(())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._steps is not None:
            self._steps.discard()

    def step(self, loss: float | None = None) -> None:
        """A step ends here, and the next one begins; ``loss`` is this rank's."""
        if self._steps is not None:
            self._steps.end_step(StepReport(None, None if loss is None else float(loss), None))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around an evaluation or a checkpoint, right after ``step()``: no part of any step."""
        if self._steps is None:
            yield
            return
        with self._steps.timer.aside():
            yield
        self._steps.anew()
