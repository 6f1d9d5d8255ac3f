"""The cheapest signatures of some operators together: exact, by eliminating one operator after the other.

Costs are of single operators and of pairs of them, so this is a sum of small tables; min-sum elimination (Dechter 1999,
bucket elimination) finds its smallest value in the number of choices to the power of how many operators one that is
eliminated still meets: two or three in a model's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.placement.signatures.operators import Operator, Price

Table = NDArray[np.float64]


class _Factor(NamedTuple):
    """A table over the choices of some operators, in rising order of their places."""

    places: tuple[int, ...]
    costs: Table


class Assignment(NamedTuple):
    """A choice of each operator by number, and what they cost together."""

    choices: tuple[int, ...]
    cost: float


def cheapest(operators: Sequence[Operator], price: Price) -> Assignment:
    """Of several that cost the same, the first choices.

    Raises:
        ValueError: an operator has no choice.
    """
    if any(not operator.choices for operator in operators):
        raise ValueError("an operator without a way to run it")
    factors = _factors(operators, price)
    undecided, decided = set(range(len(operators))), list[tuple[int, _Factor]]()
    cost = 0.0
    while undecided:
        place = min(undecided, key=lambda candidate: (len(_neighbours(factors, candidate)), candidate))
        near = [factor for factor in factors if place in factor.places]
        joined = _sum_factors(near)
        axis = joined.places.index(place)
        decided.append((place, joined))
        reduced = _Factor(
            tuple(other for other in joined.places if other != place), joined.costs.min(axis=axis)
        )
        factors = [factor for factor in factors if place not in factor.places]
        if reduced.places:
            factors.append(reduced)
        else:
            cost += float(reduced.costs)
        undecided.remove(place)
    chosen = dict[int, int]()
    for place, table in reversed(decided):
        index = tuple(slice(None) if other == place else chosen[other] for other in table.places)
        chosen[place] = int(np.argmin(table.costs[index]))
    return Assignment(tuple(chosen[place] for place in range(len(operators))), cost)


def _factors(operators: Sequence[Operator], price: Price) -> list[_Factor]:
    factors = list[_Factor]()
    for place, operator in enumerate(operators):
        own_costs = [price.operator_cost(operator, choice) for choice in operator.choices]
        factors.append(_Factor((place,), np.array(own_costs)))
        for number, other in enumerate(operator.inputs):
            source = operators[other]
            costs = [
                [
                    price.edge(source_choice.output, choice.inputs[number], source.bytes_, operator.forwards)
                    for choice in operator.choices
                ]
                for source_choice in source.choices
            ]
            factors.append(_Factor((other, place), np.array(costs)))
    return factors


def _neighbours(factors: Sequence[_Factor], place: int) -> set[int]:
    return {other for factor in factors if place in factor.places for other in factor.places} - {place}


def _sum_factors(factors: Sequence[_Factor]) -> _Factor:
    """The sum of some tables, over all operators that any of them is about."""
    places = sorted({place for factor in factors for place in factor.places})
    shape = [
        next(factor.costs.shape[factor.places.index(p)] for factor in factors if p in factor.places)
        for p in places
    ]
    summed = np.zeros(shape)
    for factor in factors:
        wide = [size if place in factor.places else 1 for place, size in zip(places, shape, strict=True)]
        summed = summed + factor.costs.reshape(wide)
    return _Factor(tuple(places), summed)
