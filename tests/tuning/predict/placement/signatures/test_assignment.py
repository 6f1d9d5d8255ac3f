"""The cheapest signatures: as an exhaustive search finds them, Megatron's by themselves, and the table of products."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest

from engine.comm.signatures import PARTIAL, REPLICATED, Signature, split
from tests.support.predict.operators import ATTENTION, DATA, NORM, POINTWISE, PRODUCT, SUM, total_cost
from tuning.predict.placement.signatures.assignment import cheapest
from tuning.predict.placement.signatures.boxing import Axis
from tuning.predict.placement.signatures.operators import (
    COLUMN,
    ROW,
    WIDTH,
    Operator,
    OperatorSharding,
    Price,
    choices,
)

TABLE = Path(__file__).parents[5] / "benchmarks" / "data" / "oneflow_matmul_signatures.csv"
MOST_OPERATORS = 8
#: On two axes, where each operator has up to 25 choices.
MOST_ON_TWO = 4


def exhaustive(operators: list[Operator], price: Price) -> float:
    every = itertools.product(*(range(len(one.choices)) for one in operators))
    return min(total_cost(operators, chosen, price) for chosen in every)


def drawn(numbers: random.Random, axes: int = 1) -> list[Operator]:
    """A graph in which an operator reads one or two of those before it."""
    given = [OperatorSharding((), one) for one in (split(0), REPLICATED, PARTIAL)]
    found = [Operator("input", choices(*[given] * axes), (), 64.0)]
    while len(found) < (MOST_OPERATORS if axes == 1 else MOST_ON_TWO):
        ways = numbers.choice([PRODUCT, POINTWISE, NORM, ATTENTION, SUM])
        reads = tuple(numbers.randrange(len(found)) for _ in ways[0].inputs)
        size, matrix = numbers.choice([1.0, 10.0, 100.0]), numbers.choice([1.0, 10.0, 1000.0])
        seconds = numbers.choice([0.0, 50.0])
        found.append(Operator("one", choices(*[ways] * axes), reads, size, matrix, seconds))
    return found


def axis(numbers: random.Random) -> Axis:
    return Axis(numbers.choice([2, 4, 8]), numbers.choice([0.1, 1.0]), numbers.choice([0.0, 5.0]))


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_no_other_choice_of_all_is_cheaper(seed: int, axes: int) -> None:
    numbers = random.Random(seed)
    operators = drawn(numbers, axes)
    price = Price(tuple(axis(numbers) for _ in range(axes)), 3)
    found = cheapest(operators, price)
    assert total_cost(operators, found.choices, price) == pytest.approx(found.cost)
    assert found.cost == pytest.approx(exhaustive(operators, price))


def feed_forward(tokens: float, ends: Signature) -> list[Operator]:
    """Two products and what is between them, on an activation that lies as ``ends`` in front of them and behind."""
    hidden, wide = 1024.0, 4096.0
    return [
        Operator("input", choices([OperatorSharding((), ends)]), (), tokens * hidden),
        Operator("first", choices(PRODUCT), (0,), tokens * wide, hidden * wide, tokens * hidden * wide),
        Operator("activation", choices(POINTWISE), (1,), tokens * wide),
        Operator("second", choices(PRODUCT), (2,), tokens * hidden, wide * hidden, tokens * hidden * wide),
        Operator("output", choices([OperatorSharding((ends,), ends)]), (3,), tokens * hidden),
    ]


@pytest.mark.parametrize("ends", [REPLICATED, split(0)])
def test_columns_then_rows_are_found_where_matrices_are_large(ends: Signature) -> None:
    """Megatron's way (arXiv 1909.08053): nothing is sent between the two products."""
    operators = feed_forward(128.0, ends)
    chosen = cheapest(operators, Price((Axis(4),))).choices
    ways = [one.choices[number].ways[0] for one, number in zip(operators, chosen, strict=True)]
    assert ways[1] == COLUMN
    assert ways[2].output == WIDTH
    assert ways[3] == ROW


def test_tokens_are_split_where_there_are_many() -> None:
    operators = feed_forward(1e6, split(0))
    chosen = cheapest(operators, Price((Axis(4),))).choices
    assert [operators[place].choices[chosen[place]].ways for place in (1, 3)] == [(DATA,), (DATA,)]


def test_a_sum_that_two_products_make_is_put_off() -> None:
    """U V W with U split by columns and V by rows: the sum over ranks may wait until behind W (arXiv 2110.15032)."""
    big, small = 1000.0, 1.0
    operators = [
        Operator("u", choices([OperatorSharding((), WIDTH)]), (), big),
        Operator("v", choices(PRODUCT), (0,), big, 1.0),
        Operator("w", choices(PRODUCT), (1,), small, 1.0),
        Operator("all", choices([OperatorSharding((REPLICATED,), REPLICATED)]), (2,), small),
    ]
    chosen = cheapest(operators, Price((Axis(4),))).choices
    assert [operators[place].choices[chosen[place]].output for place in (1, 2)] == [(PARTIAL,), (PARTIAL,)]


def test_products_have_the_published_signatures() -> None:
    """Rows of an input are split along its first dimension, columns along its last."""
    lies = {"S(0)": ways_of(0), "S(1)": ways_of(1), "B": (REPLICATED,) * 2, "P(sum)": (PARTIAL,) * 2}
    with TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    one_axis = [row for row in rows if "," not in row["X"]]
    published = {
        (lies[row["X"]][0], lies[row["W"]][1], lies[row["Y"]][0]) for row in one_axis if row["W"] != "P(sum)"
    }
    assert {(one.inputs[0], one.matrix, one.output) for one in PRODUCT} == published
    assert len(one_axis) == len(published) + 1  # a matrix that is partial itself: none of ours is
    both = [row for row in rows if row not in one_axis]
    ours = {(one.inputs[0], one.matrix, one.output) for one in choices(PRODUCT, PRODUCT)}
    assert len(both) == 2
    for row in both:
        x, w, y = (
            [f"{one}(sum)" if one == "P" else one for one in row[key][1:-1].split(",")] for key in "XWY"
        )
        assert (
            tuple(lies[one][0] for one in x), tuple(lies[one][1] for one in w), tuple(lies[one][0] for one in y)
        ) in ours  # fmt: skip


def ways_of(dim: int) -> tuple[Signature, Signature]:
    """Of an activation [sequence, batch, width], and of a matrix [in, out]."""
    return (split(0) if dim == 0 else WIDTH), split(dim)


def test_an_operator_without_a_way_is_refused() -> None:
    with pytest.raises(ValueError, match="without a way"):
        cheapest([Operator("none", ())], Price((Axis(2),)))
