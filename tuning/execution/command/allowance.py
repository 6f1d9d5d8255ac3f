"""What one trial of a command may take of the study's budget of time, so that others and the confirmation fit in, too.

A trainer that takes a minute to start leaves little of a few minutes: trials then measure fewer steps than they were
asked for, and a study that could only measure its baseline says so instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config.errors import InputError, several
from tuning.spec.study_file import StudyFile

FIELD = "budget.wall_seconds"
#: The baseline, three others, and four rounds of two: a trial ends at such a part of the budget.
LENGTHS = 12
#: But not before it measured so many steps.
LEAST_MEASURED = 5


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of ``total_seconds``, infinite without a budget, for trials that are through after ``least`` steps at the
    earliest.
    """

    total_seconds: float
    least: int

    @classmethod
    def from_file(cls, file: StudyFile) -> Allowance:
        """That of a study's trials."""
        train = file.config.train
        whole = math.inf if file.budget_seconds is None else file.budget_seconds
        return cls(whole, min(train.steps, train.warmup + LEAST_MEASURED))

    @property
    def share(self) -> float:
        """Seconds after which a trial that has the least steps ends."""
        return self.total_seconds / LENGTHS

    def why_spent(self, seconds: float, steps: int) -> str:
        """Why a trial with so many steps after so many seconds is through; empty if it is not."""
        if steps < self.least or seconds < self.share:
            return ""
        share = f"{self.share:.0f} s of {FIELD}={self.total_seconds:g}"
        return f"ended after {several(steps, 'steps')}: {share} are its share"

    def no_room(self, seconds: float, steps: int, first: float | None) -> InputError | None:
        """What is said once a baseline has taken so long that no other trial fits in beside it, with what it would
        take; ``first`` are the seconds to the first of its ``steps`` steps.
        """
        if seconds < self.total_seconds / 2 or steps >= self.least:
            return None
        if first is None:
            took, length = f"told of no step for {seconds:.0f} s", seconds
        else:
            length = first + (self.least - 1) * (seconds - first) / steps
            took = f"takes about {length:.0f} s for {several(self.least, 'steps')}, {first:.0f} of them to the first"
        bound = "more than" if first is None else "at least"
        remedy = (
            f"no trial fits in beside the command as it is, which {took}; give {bound} {_to_tens(3 * length)}, "
            f"with a confirmation {_to_tens(LENGTHS * length)}"
        )
        return InputError(FIELD, self.total_seconds, remedy)


def _to_tens(seconds: float) -> int:
    """Up to whole tens."""
    return 10 * math.ceil(seconds / 10)
