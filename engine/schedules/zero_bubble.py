"""Schedules with split backwards (arXiv 2401.10241): ZB-H1 and ZB-V.

ZB-H1 is 1F1B whose weight gradients fill gaps. ZB-V (a V-shape of arXiv 2405.15362) has two chunks a rank, placed as
a V: micro-batches go down through the ranks and come up again, so the last stage, and the first backward, is on rank
0. With equal costs of F, I and W a rank that has started never waits, at the memory of 1F1B.
"""

from __future__ import annotations

from collections import Counter

from engine.schedules.actions import Action, Size, Work, forward, gradient_of_input, gradient_of_weights
from engine.schedules.classic import alternate


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


def zero_bubble_v(rank: int, size: Size) -> list[Action]:
    """Actions of one rank; keeps at most ``2 * ranks`` activations of (half-sized) chunks in flight.

    The list is a word over six kinds of work; the k-th use of a kind is for micro-batch k. Fewer micro-batches
    than the word needs lose the ones that do not exist: what is left keeps its order.
    """
    count = Counter[tuple[Work, int]]()
    actions = []
    for kind in _word(rank, size.ranks, max(size.micro_batches, 2 * size.ranks - 1)):
        actions.append(Action(kind[0], count[kind], kind[1]))
        count[kind] += 1
    return [action for action in actions if action.micro_batch < size.micro_batches]


def _word(rank: int, ranks: int, micro_batches: int) -> list[tuple[Work, int]]:
    """(work, stage) in order: the stage on the way down and the one on the way up, ``below`` ranks from the turn."""
    down, up = rank, 2 * ranks - 1 - rank
    below = ranks - rank
    forward_down, input_down, weight_down = [(work, down) for work in (Work.FORWARD, Work.INPUT, Work.WEIGHT)]
    forward_up, input_up, weight_up = [(work, up) for work in (Work.FORWARD, Work.INPUT, Work.WEIGHT)]
    all_up, backward_down = [forward_up, input_up, weight_up], [input_down, weight_down]
    steady = micro_batches - 2 * ranks + rank + 1
    return (
        [forward_down] * (2 * below - 1)
        + [forward_up, forward_down] * rank
        + all_up * below
        + [forward_down, *backward_down, *all_up] * steady
        + [*backward_down, *all_up] * (below - 1)
        + [input_down, input_up] * rank
        + backward_down * below
        + [weight_up] * rank
        + [weight_down] * rank
    )
