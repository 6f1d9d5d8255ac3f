"""When a lossy leader's loss is taken again while its run goes on, and over how many steps. Pure.

What a setting loses shows later than a window of the search (``docs/quality.md`` has an example). So its loss is taken
again, beside the exact baseline's from the same weights on the same steps, once the run has come twice as far as it
had when that was last done, and each time that it has come twice as far again. Steps of the baseline take longer than
the leader's, and are what a check costs. The later it is in a run, the less a step brings the loss down, and the longer
a check has to be: one that cannot tell is not made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config.knobs.catalogue import is_lossy, loses_alike
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile
from tuning.storage.state import CHECK

#: Fewer steps say too little.
LEAST_STEPS = 6
#: More than this share of the steps so far need not be asked for: that is how far a loss has to fall.
MOST_SHARE = 8
#: After the first, a check has at least one step for so many that the run has done. Losses fall by some 0.3 / t of
#: themselves in a step after t: in fewer than one for 30 by less than 1 %, and by then noise decides. In the lab 7
#: steps told 0.98 and 0.93 of a setting's share after 66 and 138 steps, 0.46 after 282, and nothing after 567.
TELLS = 30
#: Sooner than twice after this share of a run little can be told of its end; but where checks are so short that later
#: they tell nothing, the first two are made while they do.
EARLY = 1 / 32
#: A first check may always cost so much of what the leader saves.
OF_THE_GAIN = 0.1


@dataclass(frozen=True, slots=True)
class LossCheck:
    """So many ``steps`` from ``first`` on."""

    first: int
    steps: int


@dataclass(frozen=True, slots=True)
class LossChecks:
    """Of one leader: it takes ``share`` of the time of the run at the most, counted from the step ``since`` on, from
    which on it leads. A step of the baseline takes ``ratio`` of its own; ``most`` steps at a time. ``checks`` are those
    that were made; before any, the search took its loss from the step ``first_loss_step`` on, or from ``since``.
    """

    share: float
    ratio: float
    since: int
    most: int
    checks: Sequence[LossCheck] = ()
    first_loss_step: int | None = None

    def due(self, step: int, end: int) -> int:
        """How many steps to check now, before this ``step`` of a run of ``end`` steps; 0: none."""
        steps_left = self._allowed_steps(end) - sum(check.steps for check in self.checks)
        affordable = int(steps_left / LEAST_STEPS)
        if not self.share or affordable < 1:
            return 0
        known_from = self.since if self.first_loss_step is None else self.first_loss_step
        early = min(end * EARLY, TELLS * self.most / 4)
        last = max([1.0, known_from, early, *(check.first for check in self.checks)])
        reach = min(end, TELLS * min(steps_left, self.most)) if self.checks else end
        if not 2 * last <= step <= reach:
            return 0
        turns = max(1, min(affordable, math.ceil(math.log2(max(1.0, reach / step)))))
        wanted = max(LEAST_STEPS, math.ceil(step / TELLS), int(min(steps_left / turns, step / MOST_SHARE)))
        steps = min(wanted, int(steps_left), self.most)
        return steps if steps >= LEAST_STEPS and step + 2 * steps <= end else 0

    def _allowed_steps(self, end: int) -> float:
        """Steps of the baseline that all checks together may take."""
        remaining = max(0, end - self.since)
        gain = remaining * max(0.0, self.ratio - 1)
        shortest = LEAST_STEPS if LEAST_STEPS * self.ratio <= OF_THE_GAIN * gain else 0
        return max(self.share * remaining / self.ratio, shortest)


class LeaderLossChecks:
    """The checks of whoever leads a study."""

    def __init__(self, file: StudyFile) -> None:
        assert file.live is not None
        self._live, self._base = file.live, file.search_space.base_values
        self._values: Mapping[str, Any] | None = None
        self._since, self._asked = 0, list[LossCheck]()

    def update_checks(self, result: StudyResult, values: Mapping[str, Any], step: int) -> LossChecks | None:
        """Of a run that goes on from this ``step`` with these values, by their dotted keys; None where they lose
        nothing. Who leads anew, or loses otherwise, is checked from here on.
        """
        if not is_lossy(values):
            return None
        if self._values is None or not loses_alike(values, self._values):
            self._values, self._since, self._asked = values, step, []
        ratio = max(1.0, result.gain.ratio if result.gain is not None else 1.0)
        lengths = [
            row.steps_before
            for row in (*result.trials, *result.confirmations)
            if row.steps_before is not None
            and row.steps_before <= self._since
            and row.validation_loss is not None
            and loses_alike(values, self._base | row.config)
        ]
        # One check may cost half of what the last steps may lose to the search: where it goes to the end it is not held
        # to that limit, for a part of a check says nothing.
        most = self._live.max_slowdown * self._live.over_steps * ratio / 2
        checks = [
            LossCheck(row.steps_before, row.steps)
            for row in result.confirmations
            if row.source == CHECK and row.steps_before is not None and row.steps_before > self._since
        ]
        # Those that were asked for and told nothing cost their steps, too.
        all_checks = (*checks, *self._asked[len(checks) :])
        last = max(lengths, default=self._since)
        return LossChecks(self._live.loss_checks, ratio, self._since, int(most), all_checks, last)

    def ask(self, step: int, steps: int) -> None:
        """A check was asked for before this step; it counts however it ends."""
        self._asked.append(LossCheck(step, steps))
