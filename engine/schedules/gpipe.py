"""GPipe (arXiv 1811.06965): all forwards, then all backwards."""

from __future__ import annotations

from engine.schedules.actions import Action, Size, backward, forward


def gpipe(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps all micro-batches' activations in flight."""
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    return forwards + [backward(m, rank) for m in range(size.micro_batches)]
