"""Units that fit the numbers of a table."""

from __future__ import annotations

import pytest

from workbench.text.quantities import Column, milliseconds


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        ([0.000034, 1.2], ["0.034 ms", "1,200.000 ms"]),
        ([0.0335, 0.0412], ["33.5 ms", "41.2 ms"]),
        ([8.1234, 0.0, 12.5], ["8,123 ms", "0 ms", "12,500 ms"]),
        ([0.0], ["0 ms"]),
    ],
)
def test_the_smallest_number_of_a_table_keeps_three_figures(seconds: list[float], texts: list[str]) -> None:
    column = Column("step", seconds, milliseconds(seconds))
    assert column.title == "step, ms"
    assert column.texts == texts
    shown = column.unit.format if column.unit else ""
    assert [shown.replace(",", "") % number + " ms" for number in column.numbers] == [
        text.replace(",", "") for text in texts
    ], "a table shows the same digits as a terminal"
