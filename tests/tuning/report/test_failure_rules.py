"""Rules of failures over many trials."""

from __future__ import annotations

import pytest

from tuning.report import failure_rules
from tuning.report.failure_rules import Case, learn


@pytest.mark.parametrize(
    ("hits", "size", "failures", "cases"), [(9, 20, 60, 280), (3, 3, 40, 290), (40, 41, 45, 250)]
)
def test_chances_of_many_trials_are_those_of_few(hits: int, size: int, failures: int, cases: int) -> None:
    exact = failure_rules._tail_probability(hits, size, failures, cases)
    most = min(size, failures)
    assert failure_rules._long_tail(hits, most, size, failures, cases) == pytest.approx(exact, rel=1e-9)


def test_rules_of_thousands_of_trials_are_found() -> None:
    cases = [
        Case({"micro_batch": place % 7 + 1, "ratio": place / 4000, "zero": place % 3}, place % 7 == 6)
        for place in range(4000)
    ]
    rules = learn(cases)
    assert [str(rule) for rule in rules] == ["micro_batch >= 7"]
