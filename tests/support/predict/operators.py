"""Operators of any model, and what a choice for each of them costs together."""

from __future__ import annotations

from collections.abc import Sequence

from engine.comm.signatures import PARTIAL, REPLICATED
from tuning.predict.placement.signatures.operators import (
    COLUMN,
    ROW,
    SEQUENCE,
    WIDTH,
    Operator,
    OperatorSharding,
    Price,
    same_signatures,
)

#: Ways of a product with a matrix: rows of the input, columns of the matrix, both along what is summed; or on every
#: rank alike, and with a sum that is put off.
DATA = OperatorSharding((SEQUENCE,), SEQUENCE, REPLICATED)
ALIKE = OperatorSharding((REPLICATED,), REPLICATED, REPLICATED)
DEFERRED_SUM = OperatorSharding((PARTIAL,), PARTIAL, REPLICATED)
PRODUCT = (DATA, COLUMN, ROW, ALIKE, DEFERRED_SUM)

#: Value by value; of what is linear a partial one will do.
POINTWISE, SUM = (
    same_signatures(1, SEQUENCE, WIDTH, REPLICATED),
    same_signatures(2, SEQUENCE, WIDTH, REPLICATED, PARTIAL),
)
#: Over the width of each token.
NORM = same_signatures(1, SEQUENCE, REPLICATED)
#: Over the sequence, head by head.
ATTENTION = same_signatures(1, WIDTH, REPLICATED)


def total_cost(operators: Sequence[Operator], chosen: Sequence[int], price: Price) -> float:
    """Cost of all operators together, each with one of its choices by number: seconds of a micro-batch."""
    cost = 0.0
    for operator, number in zip(operators, chosen, strict=True):
        choice = operator.choices[number]
        cost += price.operator_cost(operator, choice)
        for place, target in zip(operator.inputs, choice.inputs, strict=True):
            source = operators[place]
            output = source.choices[chosen[place]].output
            cost += price.edge(output, target, source.bytes_, operator.forwards)
    return cost
