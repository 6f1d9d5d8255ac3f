"""Training that has come apart: a loss or a gradient that is no number, zero, or does not change any more."""

from __future__ import annotations

import math

from engine.config.errors import WorkbenchError

#: So many steps on end say that it is no accident: new text never gives the same loss to the bit.
STILL_STEPS = 5


class DivergedError(WorkbenchError):
    """Nothing is learned any more. ``phase`` computes what is wrong."""

    def __init__(self, step: int, words: str, phase: str) -> None:
        super().__init__(f"step {step}: {words}")
        self.phase = phase


class DivergenceCheck:
    """Looks at one rank's loss and gradient norm of every step, which are on the host by then; nothing is reduced.

    A loss or norm that is not finite ends the run at once. A loss of exactly zero, a norm of exactly zero, or a loss
    that is the same to the bit end it after ``STILL_STEPS`` steps on end, or after all steps of a shorter run, but
    never after one: the learning rate is above zero always. ``steps`` is how many the run has.
    """

    def __init__(self, steps: int) -> None:
        self._limit = min(STILL_STEPS, max(2, steps))
        self._loss: float | None = None
        self._same = self._no_loss = self._no_gradient = 0

    def check(self, step: int, loss: float | None, norm: float) -> None:
        """``loss`` is None on ranks that do not compute it.

        Raises:
            DivergedError: this step shows that nothing is learned.
        """
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(step, f"the loss is {_named(loss)}", "forward")
        if not math.isfinite(norm):
            raise DivergedError(step, f"the norm of the gradient is {_named(norm)}", "backward")
        self._count(loss, norm)
        if self._no_loss >= self._limit:
            raise DivergedError(step, f"the loss is exactly 0 for {self._no_loss} steps", "forward")
        if self._no_gradient >= self._limit:
            words = f"the norm of the gradient is exactly 0 for {self._no_gradient} steps; nothing is learned"
            raise DivergedError(step, words, "backward")
        if self._same >= self._limit:
            words = f"the loss is frozen: {loss:.6g} to the bit for {self._same} steps"
            raise DivergedError(step, words, "forward")

    def _count(self, loss: float | None, norm: float) -> None:
        self._no_loss = self._no_loss + 1 if loss == 0 else 0
        self._no_gradient = self._no_gradient + 1 if norm == 0 else 0
        self._same = self._same + 1 if loss is not None and loss == self._loss else int(loss is not None)
        self._loss = loss


def check_validation_loss(step: int, loss: float) -> None:
    """Of the loss on held-out text: what the last update did to the weights shows only there.

    Raises:
        DivergedError: it is not finite.
    """
    if not math.isfinite(loss):
        raise DivergedError(step, f"the loss on held-out text is {_named(loss)}", "validation")


def _named(value: float) -> str:
    return "not a number" if math.isnan(value) else "infinite"
