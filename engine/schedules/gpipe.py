"""GPipe (arXiv 1811.06965): all forwards, then all backwards."""

from __future__ import annotations

from engine.schedules.actions import Action, backward, forward


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Actions of one stage; keeps ``micro_batches`` activations in flight."""
    forwards = [forward(m) for m in range(micro_batches)]
    return forwards + [backward(m) for m in range(micro_batches)]
