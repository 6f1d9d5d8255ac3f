"""Registers of a pipeline: how many messages of one way may have been begun and not yet used up.

The quota of OneFlow's actors (arXiv 2110.15032): whoever makes a message takes a register of the way it goes, before
the work begins; whoever has used it gives it back. Both follow their lists, so it is known beforehand whose end each
piece of work waits for: no more is held of a way than its registers, however slow the one who reads is.
"""

from __future__ import annotations

from functools import lru_cache

from engine.schedules.actions import Action, Plan, order_actions

#: From a stage, to a stage: activations go ahead, gradients come back.
Edge = tuple[int, int]
#: The event with which a rank tells what it held between stages.
REGISTERS = "registers"


def ways(plan: Plan) -> dict[Edge, list[tuple[Action, Action]]]:
    """The actions that make each way's messages and those that use them up, both in the order of their ranks' lists."""
    produced, used = dict[Edge, list[Action]](), dict[Edge, list[Action]]()
    for rank, actions in enumerate(plan.actions):
        for action in actions:
            output, wanted = plan.find_output(action), plan.find_input(action)
            if output is not None and plan.rank_of[output[1]] != rank:
                produced.setdefault((action.stage, output[1]), []).append(action)
            if wanted is not None and plan.rank_of[wanted.stage] != rank:
                used.setdefault((wanted.stage, action.stage), []).append(action)
    return {way: list(zip(makers, used[way], strict=True)) for way, makers in produced.items()}


@lru_cache(maxsize=256)
def credits_of(plan: Plan, registers: int | None) -> dict[Action, Action]:
    """Action -> the action of another rank that has to have ended before it begins: the register that it takes is
    given back then. The first messages of a way wait for nobody.
    """
    if registers is None:
        return {}
    return {
        maker: user
        for pairs in ways(plan).values()
        for (maker, _), (_, user) in zip(pairs[registers:], pairs, strict=False)
    }


@lru_cache(maxsize=256)
def fewest(plan: Plan) -> int:
    """The fewest registers with which a plan comes to its end: with fewer, ranks wait for each other for good."""
    low, high = 1, plan.micro_batches
    actions = sum(map(len, plan.actions))
    while low < high:
        middle = (low + high) // 2
        if sum(1 for _ in order_actions(plan, credits_of(plan, middle))) == actions:
            high = middle
        else:
            low = middle + 1
    return low
