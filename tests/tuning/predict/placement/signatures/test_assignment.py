"""The cheapest signatures: as an exhaustive search finds them, Megatron's by themselves, and the table of products."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest

from engine.comm.signatures import BROADCAST, PARTIAL, Signature, split
from tuning.predict.placement.signatures.assignment import cheapest
from tuning.predict.placement.signatures.operators import (
    ATTENTION,
    COLUMN,
    DATA,
    NORM,
    POINTWISE,
    PRODUCT,
    ROW,
    SUM,
    WIDTH,
    Choice,
    Operator,
    Price,
    total,
)

TABLE = Path(__file__).parents[5] / "benchmarks" / "data" / "oneflow_matmul_signatures.csv"
MOST_OPERATORS = 8


def exhaustive(operators: list[Operator], price: Price) -> float:
    choices = itertools.product(*(range(len(one.choices)) for one in operators))
    return min(total(operators, chosen, price) for chosen in choices)


def drawn(numbers: random.Random) -> list[Operator]:
    """A graph in which an operator reads one or two of those before it."""
    found = [Operator("input", tuple(Choice((), one) for one in (split(0), BROADCAST, PARTIAL)), (), 64.0)]
    while len(found) < MOST_OPERATORS:
        choices = numbers.choice([PRODUCT, POINTWISE, NORM, ATTENTION, SUM])
        reads = tuple(numbers.randrange(len(found)) for _ in choices[0].inputs)
        size, matrix = numbers.choice([1.0, 10.0, 100.0]), numbers.choice([1.0, 10.0, 1000.0])
        seconds = numbers.choice([0.0, 50.0])
        found.append(Operator("one", choices, reads, size, matrix, seconds))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_other_choice_of_all_is_cheaper(seed: int) -> None:
    numbers = random.Random(seed)
    operators = drawn(numbers)
    price = Price(numbers.choice([2, 4, 8]), numbers.choice([0.1, 1.0]), numbers.choice([0.0, 5.0]), 3)
    found = cheapest(operators, price)
    assert total(operators, found.chosen, price) == pytest.approx(found.cost)
    assert found.cost == pytest.approx(exhaustive(operators, price))


def feed_forward(tokens: float, ends: Signature) -> list[Operator]:
    """Two products and what is between them, on an activation that lies as ``ends`` in front of them and behind."""
    hidden, wide = 1024.0, 4096.0
    return [
        Operator("input", (Choice((), ends),), (), tokens * hidden),
        Operator("first", PRODUCT, (0,), tokens * wide, hidden * wide, tokens * hidden * wide),
        Operator("activation", POINTWISE, (1,), tokens * wide),
        Operator("second", PRODUCT, (2,), tokens * hidden, wide * hidden, tokens * hidden * wide),
        Operator("output", (Choice((ends,), ends),), (3,), tokens * hidden),
    ]


@pytest.mark.parametrize("ends", [BROADCAST, split(0)])
def test_columns_then_rows_are_found_where_matrices_are_large(ends: Signature) -> None:
    """Megatron's way (arXiv 1909.08053): nothing is sent between the two products."""
    operators = feed_forward(128.0, ends)
    chosen = cheapest(operators, Price(4)).chosen
    ways = [one.choices[number] for one, number in zip(operators, chosen, strict=True)]
    assert ways[1] == COLUMN
    assert ways[2].output == WIDTH
    assert ways[3] == ROW


def test_tokens_are_split_where_there_are_many() -> None:
    operators = feed_forward(1e6, split(0))
    chosen = cheapest(operators, Price(4)).chosen
    assert [operators[place].choices[chosen[place]] for place in (1, 3)] == [DATA, DATA]


def test_a_sum_that_two_products_make_is_put_off() -> None:
    """U V W with U split by columns and V by rows: the sum over ranks may wait until behind W (arXiv 2110.15032)."""
    big, small = 1000.0, 1.0
    operators = [
        Operator("u", (Choice((), WIDTH),), (), big),
        Operator("v", PRODUCT, (0,), big, 1.0),
        Operator("w", PRODUCT, (1,), small, 1.0),
        Operator("all", (Choice((BROADCAST,), BROADCAST),), (2,), small),
    ]
    chosen = cheapest(operators, Price(4)).chosen
    assert [operators[place].choices[chosen[place]].output for place in (1, 2)] == [PARTIAL, PARTIAL]


def test_products_have_the_published_signatures() -> None:
    """Rows of an input are split along its first dimension, columns along its last."""
    lies = {"S(0)": ways_of(0), "S(1)": ways_of(1), "B": (BROADCAST,) * 2, "P(sum)": (PARTIAL,) * 2}
    with TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    one_axis = [row for row in rows if "(" not in row["X"].removeprefix("S(").removeprefix("P(")]
    published = {
        (lies[row["X"]][0], lies[row["W"]][1], lies[row["Y"]][0]) for row in one_axis if row["W"] != "P(sum)"
    }
    assert {(one.inputs[0], one.matrix, one.output) for one in PRODUCT} == published
    assert len(one_axis) == len(published) + 1  # a matrix that is partial itself: none of ours is


def ways_of(dim: int) -> tuple[Signature, Signature]:
    """Of an activation [sequence, batch, width], and of a matrix [in, out]."""
    return (split(0) if dim == 0 else WIDTH), split(dim)


def test_an_operator_without_a_way_is_refused() -> None:
    with pytest.raises(ValueError, match="without a way"):
        cheapest([Operator("none", ())], Price(2))
