"""The row of a summary that tells the loss on held-out text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QualityRow:
    """The loss on held-out text before ``step``, when a run had trained for ``seconds`` (validation is no part of it)
    and a rank had sent ``wire_bytes`` (the mean over ranks, by formula; None where one is not known).
    """

    step: int
    loss: float
    seconds: float
    wire_bytes: float | None = None
