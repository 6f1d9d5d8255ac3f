"""ZB-H1 (arXiv 2401.10241): 1F1B whose backwards are split, so that weight gradients fill gaps."""

from __future__ import annotations

from engine.schedules.actions import Action, Size, Work, forward, gradient_of_input, gradient_of_weights
from engine.schedules.one_f_one_b import alternate


def zero_bubble(rank: int, size: Size) -> list[Action]:
    """Actions of one rank with one stage; keeps at most ``ranks`` activations in flight, as 1F1B's first rank.

    The weight gradients of rank r wait for r further micro-batches: the gradient of the input goes on to
    the rank before without them, and they fill the end of the step.
    """
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    inputs = [gradient_of_input(m, rank) for m in range(size.micro_batches)]
    actions = []
    for action in alternate(forwards, inputs, warm_up=size.ranks - rank - 1):
        actions.append(action)
        if action.work is Work.INPUT and action.micro_batch >= rank:
            actions.append(gradient_of_weights(action.micro_batch - rank, rank))
    waiting = range(max(0, size.micro_batches - rank), size.micro_batches)
    return actions + [gradient_of_weights(m, rank) for m in waiting]
