"""How far apart ranks can be, which decides how far ahead orders and stops are announced."""

from __future__ import annotations

from typing import Any

import pytest

from engine.run.commands import most_steps_apart
from tests.support.runs import small


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ({}, 0),
        ({"overlap__delay": 1}, 1),
        ({"outer__method": "co2", "outer__period": 4, "outer__overlap": 0}, 8),
        ({"outer__method": "streaming", "outer__period": 6, "outer__overlap": 2}, 14),
    ],
)
def test_only_methods_that_let_ranks_go_on_widen(values: dict[str, Any], apart: int) -> None:
    assert most_steps_apart(small(parallel__dp=2, **values)) == apart
