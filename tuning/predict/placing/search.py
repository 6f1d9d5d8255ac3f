"""The order with the least cost: all of them where they are few, else by simulated annealing. Pure.

Annealing has the moves of Pipette's program (arXiv 2405.18093). That one counts a difference in cost by its leading
digits and cools by 0.999 a step for as long as its time allows. Here a difference counts as a part of the start's cost
and the temperature falls evenly to the last step, so that any number of steps ends cold; and several chains go side by
side, since costs of many orders at once are cheap.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from tuning.predict.placing.links import Floats, Ints

#: Costs of orders [orders, places] -> [orders].
CostFunction = Callable[[Ints], Floats]
#: The most places of which all orders are tried: 40,320 of them.
MAX_EXHAUSTIVE = 8
CHAINS, STEPS = 12, 4000
#: Temperatures of the first and the last step, as parts of the start's cost.
HOT, COLD = 0.3, 0.003
_BATCH = 4096


class Found(NamedTuple):
    """The best order that was seen, its cost, and how many were tried."""

    order: tuple[int, ...]
    cost: float
    tried: int


def exhaustive(places: int, costs: CostFunction) -> Found:
    """The best of all orders, the first of equals in the order of numbers.

    Raises:
        ValueError: there are more than ``MAX_EXHAUSTIVE`` places.
    """
    if places > MAX_EXHAUSTIVE:
        raise ValueError(
            f"{places} places have too many orders to try them all; {MAX_EXHAUSTIVE} are the most"
        )
    best, tried = Found((), math.inf, 0), 0
    orders = itertools.permutations(range(places))
    while batch := list(itertools.islice(orders, _BATCH)):
        found = costs(np.array(batch))
        least, tried = int(found.argmin()), tried + len(batch)
        if found[least] < best.cost:
            best = Found(batch[least], float(found[least]), tried)
    return best._replace(tried=tried)


def anneal(
    start: Sequence[int],
    costs: CostFunction,
    seed: int = 0,
    steps: int = STEPS,
    chains: int = CHAINS,
    limit_seconds: float | None = None,
) -> Found:
    """The best order seen in ``steps`` steps of each chain; the first chain begins with ``start``, others anywhere.

    The same seed gives the same order without ``limit_seconds``, which ends it earlier, and cools faster then.
    """
    random, begun, places = Random(seed), time.monotonic(), list(start)
    at = [places, *(random.sample(places, len(places)) for _ in range(chains - 1))]
    now = costs(np.array(at))
    scale, best = float(now[0]), _better(Found((), math.inf, 0), at, now)
    tried = chains
    for step in range(steps if len(places) > 1 else 0):
        spent = 0.0 if limit_seconds is None else (time.monotonic() - begun) / limit_seconds
        if spent >= 1:
            break
        moved = [_moved(order, random) for order in at]
        new = costs(np.array(moved))
        tried, temperature = tried + chains, scale * HOT * (COLD / HOT) ** max(step / steps, spent)
        for chain in range(chains):
            if _accepted(float(new[chain] - now[chain]), temperature, random):
                at[chain], now[chain] = moved[chain], new[chain]
        best = _better(best, at, now)
    return best._replace(tried=tried)


def _better(best: Found, orders: list[list[int]], costs: Floats) -> Found:
    least = int(costs.argmin())
    return Found(tuple(orders[least]), float(costs[least]), 0) if costs[least] < best.cost else best


def _accepted(difference: float, temperature: float, random: Random) -> bool:
    if difference <= 0 or temperature <= 0:
        return difference <= 0
    return random.random() < math.exp(-difference / temperature)


def _moved(order: list[int], random: Random) -> list[int]:
    """A segment reversed, one place put elsewhere, two swapped, a segment put elsewhere, or that and reversed."""
    kind = random.randrange(5)
    first, last = sorted(random.sample(range(len(order) + 1), 2))
    if kind == 0:
        return order[:first] + order[first:last][::-1] + order[last:]
    if kind == 2:
        one, other = random.sample(range(len(order)), 2)
        swapped = list(order)
        swapped[one], swapped[other] = order[other], order[one]
        return swapped
    if kind == 1:
        first = random.randrange(len(order))
        last = first + 1
    taken, rest = order[first:last], order[:first] + order[last:]
    place = random.randrange(len(rest) + 1)
    return rest[:place] + (taken[::-1] if kind == 4 else taken) + rest[place:]
