"""1F1B (PipeDream-flush, arXiv 2006.09503): a backward as soon as one can run."""

from __future__ import annotations

from engine.schedules.actions import Action, Size, backward, forward


def one_f_one_b(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps at most ``ranks - rank`` activations in flight."""
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    backwards = [backward(m, rank) for m in range(size.micro_batches)]
    return alternate(forwards, backwards, warm_up=size.ranks - rank - 1)


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Some forwards alone, then one forward and one backward in turn, then the backwards that are left."""
    actions = forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards, strict=False):
        actions += pair
    return actions + backwards[len(forwards[warm_up:]) :]
