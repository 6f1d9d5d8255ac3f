"""How a check ends: passed, failed, or not possible here, with its reason and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """Every way a check can end."""

    PASS = "pass"
    FAIL = "fail"
    NOT_POSSIBLE = "not_possible"


Number = float | int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` is one line in plain words; ``measured`` numbers have their unit at the end of their names."""

    outcome: Outcome
    reason: str
    measured: dict[str, Number] = field(default_factory=dict)


def passed(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """What was looked for is so."""
    return Verdict(Outcome.PASS, reason, measured or {})


def failed(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """It is not."""
    return Verdict(Outcome.FAIL, reason, measured or {})


def not_possible(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """It cannot be told on this machine."""
    return Verdict(Outcome.NOT_POSSIBLE, reason, measured or {})


def judged(problems: list[str], good: str, measured: dict[str, Number]) -> Verdict:
    """Failed with all problems, passed if there is none."""
    return failed("; ".join(problems), measured) if problems else passed(good, measured)
