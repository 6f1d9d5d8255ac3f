"""What finished runs told of this machine: how many count, how far off held-out ones are, which do not. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tuning.predict.model.headroom import HALF_OF_90_PERCENT, Allowance


def of_few(groups: int) -> float:
    """How many times as wide as their errors an interval of 90 % is that so many groups, two or more, tell of.

    Student's t in place of a normal distribution's end, and the error of the mean itself; the quantile is Fisher's and
    Cornish's expansion (Technometrics 1960), 6 % too small with three groups.
    """
    z, freedom = HALF_OF_90_PERCENT, groups - 1
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return student * math.sqrt(1 + 1 / groups) / z


class LeftOut(NamedTuple):
    """A finished run that does not count, and why."""

    run: str
    reason: str


class Errors(NamedTuple):
    """Ends of 90 % of predicted over measured, less 1, on layouts that were held out: -0.1 is 10 % too little."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Experience:
    """``runs`` of so many ``configurations`` in so many ``layouts`` count. ``error`` is None where they are too few,
    and constants stay as they were; ``allowance`` is None where too few told their memory, which ``memory_runs`` did.
    ``links`` are the networks that runs of several ranks were on.
    """

    runs: int
    configurations: int
    layouts: int
    links: tuple[str, ...] = ()
    error: Errors | None = None
    memory_runs: int = 0
    allowance: Allowance | None = None
    left_out: tuple[LeftOut, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "runs": self.runs,
            "configurations": self.configurations,
            "layouts": self.layouts,
            "links": list(self.links),
            "fitted": self.error is not None,
            "error": self.error and self.error._asdict(),
            "memory": {"runs": self.memory_runs, **self._memory()},
            "left_out": [one._asdict() for one in self.left_out],
        }

    def _memory(self) -> Mapping[str, Any]:
        known = self.allowance
        names = ("context_bytes", "share", "error")
        return {"learned": known is not None, **{name: known and getattr(known, name) for name in names}}
