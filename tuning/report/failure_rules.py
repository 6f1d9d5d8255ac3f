"""Which settings go with a failure: single conditions and pairs, believed only beyond chance. Pure."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, exp, lgamma
from typing import Any

import numpy as np

#: Fewer failures than these teach nothing.
LEAST_FAILURES = 3
#: A rule is told if chance alone would show one as clear in less than so many studies, all rules counted.
ALPHA = 0.05
#: Trials up to which chances are worked out in whole numbers; beyond that these have thousands of digits.
EXACT = 300
#: Of a knob's many values so many are thresholds.
MOST_THRESHOLDS = 16
MOST_RULES = 3
#: Two conditions have to explain so much more than one.
_SIMPLER = 0.1
_WITHIN: dict[str, Callable[[Any, Any], Any]] = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}
_ABSENT = object()
#: A term so much smaller than the sum before it does not change it.
_NOTHING = 2.0**-54


@dataclass(frozen=True, slots=True)
class Case:
    """One trial: its settings, without those that do not act, and whether it failed."""

    settings: Mapping[str, Any]
    failed: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """``batch.micro_batch >= 4``. ``sign`` is =, >= or <=; a setting that does not act meets none."""

    key: str
    sign: str
    value: Any

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings meet it."""
        return self.key in settings and bool(_WITHIN[self.sign](settings[self.key], self.value))

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.key}={value}" if self.sign == "=" else f"{self.key} {self.sign} {value}"


@dataclass(frozen=True, slots=True)
class Rule:
    """All of its conditions together, and how many trials failed with and without them.

    ``p``: how likely chance alone would show any of the ``looked_at`` rules as clear as this one (Fisher's exact test,
    one-sided, with Tarone's correction). ``same``: single conditions that hold for the very same trials.
    """

    conditions: tuple[Condition, ...]
    failed_with: int
    trials_with: int
    failed_without: int
    trials_without: int
    p: float
    looked_at: int
    same: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))


def learn(cases: Sequence[Case]) -> list[Rule]:
    """The clearest rule, then the clearest one for the failures that it leaves unexplained, and so on."""
    rules: list[Rule] = []
    unexplained = list(cases)
    while len(rules) < MOST_RULES and sum(case.failed for case in unexplained) >= LEAST_FAILURES:
        rule = _clearest(unexplained)
        if rule is None:
            break
        rules.append(rule)
        unexplained = [
            case
            for case in unexplained
            if not all(condition.holds(case.settings) for condition in rule.conditions)
        ]
    return rules


def _clearest(cases: Sequence[Case]) -> Rule | None:
    failed = _bits([case.failed for case in cases])
    alone = _conditions_by_mask(cases)
    pairs: dict[int, tuple[Condition, ...]] = {
        first_condition & second_condition: (first[0], second[0])
        for (first_condition, first), (second_condition, second) in combinations(alone.items(), 2)
        if first[0].key != second[0].key
        and first_condition & second_condition
        and first_condition & second_condition not in alone
    }
    looked_at = _testable([*alone, *pairs], failed.bit_count(), len(cases))

    def chance(mask: int) -> float:
        hits = (mask & failed).bit_count()
        if hits < LEAST_FAILURES:
            return 1.0
        return _tail_probability(hits, mask.bit_count(), failed.bit_count(), len(cases))

    def order(mask: int) -> tuple[float, float]:
        """Chances below the smallest number are equal: then the share of failures tells."""
        return chance(mask), -(mask & failed).bit_count() / mask.bit_count()

    single, pair = min(alone, key=order, default=None), min(pairs, key=order, default=None)
    if single is None:
        return None
    mask, conditions, same = single, alone[single][:1], alone[single][1:]
    if pair is not None and chance(pair) < _SIMPLER * chance(single):
        mask, conditions, same = pair, pairs[pair], ()
    p = min(1.0, chance(mask) * looked_at)
    if p > ALPHA:
        return None
    hits, size = (mask & failed).bit_count(), mask.bit_count()
    remaining = failed.bit_count() - hits, len(cases) - size
    return Rule(conditions, hits, size, *remaining, p, looked_at, same)


def _conditions_by_mask(cases: Sequence[Case]) -> dict[int, tuple[Condition, ...]]:
    """For each set of cases, as bits, the conditions that choose it; none that chooses all or nothing."""
    conditions_of: dict[int, tuple[Condition, ...]] = {}
    columns: dict[tuple[str, bool], Any] = {}
    for condition in _conditions(cases):
        by_size = condition.sign != "="
        key_and_size = condition.key, by_size
        if key_and_size not in columns:
            columns[key_and_size] = _column(cases, condition.key, by_size)
        mask = _bits(_match_column(condition, columns[key_and_size]))
        if 0 < mask.bit_count() < len(cases):
            conditions_of[mask] = (*conditions_of.get(mask, ()), condition)
    return conditions_of


def _column(cases: Sequence[Case], key: str, by_size: bool) -> Any:
    """One setting of all cases; of numbers as an array, where one that does not act compares with nothing."""
    values = [case.settings.get(key, _ABSENT) for case in cases]
    if not by_size:
        return values
    return np.array([math.nan if value is _ABSENT else value for value in values], dtype=np.float64)


def _match_column(condition: Condition, column: Any) -> Any:
    """As :meth:`Condition.holds`, of one setting of all cases: there may be thousands."""
    if condition.sign == "=":
        return [value == condition.value for value in column]
    return _WITHIN[condition.sign](column, condition.value)


def _bits(chosen: Sequence[bool]) -> int:
    """Which of them, as bits of one number, the first one lowest."""
    packed = np.packbits(np.array(chosen, dtype=np.bool_), bitorder="little")
    return int.from_bytes(packed.tobytes(), "little")


def _conditions(cases: Sequence[Case]) -> Iterator[Condition]:
    for key in dict.fromkeys(key for case in cases for key in case.settings):
        settings = [case.settings[key] for case in cases if key in case.settings]
        values_by_name = {_name(value): value for value in settings}
        values = list(values_by_name.values())
        if len(values) > 2 and all(_is_number(value) for value in values):
            ordered = _sample_evenly(sorted(values))
            yield from (Condition(key, ">=", value) for value in ordered[1:])
            yield from (Condition(key, "<=", value) for value in ordered[:-1])
        else:
            yield from (Condition(key, "=", value) for value in values)


def _name(value: Any) -> object:
    """What tells a value from all others: 1 and True are two."""
    return (float, value) if type(value) is float else repr(value)


def _sample_evenly(ordered: list[Any]) -> list[Any]:
    """Some of many values, evenly: a threshold between two trials of thousands says no more than one nearby."""
    if len(ordered) <= MOST_THRESHOLDS:
        return ordered
    last = len(ordered) - 1
    places = (round(place * last / (MOST_THRESHOLDS - 1)) for place in range(MOST_THRESHOLDS))
    return [ordered[place] for place in dict.fromkeys(places)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _testable(masks: Sequence[int], failures: int, cases: int) -> int:
    """How many rules could be clear enough at all: a rule of two trials cannot, whatever they do (Tarone 1990)."""
    sizes = [mask.bit_count() for mask in masks]
    least = sorted(_tail_probability(min(size, failures), size, failures, cases) for size in sizes)
    count = 1
    while bisect_right(least, ALPHA / count) > count:
        count += 1
    return count


@lru_cache(maxsize=2**16)
def _tail_probability(hits: int, size: int, failures: int, cases: int) -> float:
    """How likely ``size`` cases drawn from ``cases`` have ``hits`` or more of the ``failures`` (hypergeometric)."""
    most = min(size, failures)
    if cases > EXACT:
        return _long_tail(hits, most, size, failures, cases)
    ways = sum(
        comb(failures, count) * comb(cases - failures, size - count) for count in range(hits, most + 1)
    )
    return ways / comb(cases, size)


def _long_tail(hits: int, most: int, size: int, failures: int, cases: int) -> float:
    """The same by logarithms, each term from the one before; 1 where so many hits are no surprise."""
    if hits * cases <= size * failures:
        return 1.0
    first = (
        _log_choose(failures, hits) + _log_choose(cases - failures, size - hits) - _log_choose(cases, size)
    )
    whole = term = 1.0
    for count in range(hits, most):
        term *= (failures - count) * (size - count) / ((count + 1) * (cases - failures - size + count + 1))
        whole += term
        if term < _NOTHING * whole:  # those that follow are smaller still
            break
    return min(1.0, exp(first) * whole)


def _log_choose(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)
