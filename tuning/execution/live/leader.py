"""The leader of a live study: who it is, how a challenger does beside it, A B B A, what else is worth a window while it
leads, and whether it became slower or faster once nobody turns it any more.

A challenger's window lies between steps of the leader. Its first half is held against those before it, its second half
against those after it, so a drift of the machine or the data makes the one half look as much better as the other one
worse. What leads is told by the test of the confirmation (:mod:`tuning.analysis.paired_comparison`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from engine.config.knobs.catalogue import is_lossy, live_part, loses_alike
from engine.config.run_config import RunConfig
from profilers.analysis.statistics import Interval
from profilers.model.run_summary import RunSummary
from tuning.analysis import paired_comparison
from tuning.analysis.comparison import LEVEL
from tuning.analysis.paired_comparison import Lead
from tuning.execution.executor import CostlyBaselineError, EndOfSearchError, EndOfTrialsError
from tuning.execution.live.window_value import HOPELESS, LEAST_STEPS, WindowValues, name_of

#: So many steps are compared with as many.
STEPS = 30
#: Steps of the leader on one side of a window, at the most.
MOST_BESIDE = 24
#: So many pairs at the most: neighbours resemble each other, and are averaged before they are compared.
MOST_PAIRS = 8


@dataclass(frozen=True, slots=True)
class LeaderComparison:
    """A window's lead over the leader around it; ``both`` sides of it were measured."""

    lead: Lead
    both: bool

    @property
    def ratio(self) -> Interval:
        """Of the window's rate over the leader's."""
        return self.lead.interval

    @property
    def slower(self) -> bool:
        """Whether the window is told to be slower than the leader."""
        return self.lead.verdict(0.0) == "worse"


def lead_of_window(
    before: Sequence[float], window: Sequence[float], after: Sequence[float] = ()
) -> LeaderComparison | None:
    """From the seconds of measured steps, the window's and those of the leader around it; None without a pair."""
    if before and after:
        count = min(len(before), len(after), len(window) // 2)
        sides = [(before[-count:], window[:count]), (after[:count], window[-count:])] if count else []
    else:
        count = min(len(before), len(window))
        sides = [(before[-count:], window[:count])] if count else []
    pairs = [pair for side in sides for pair in _pairs(*side, MOST_PAIRS // len(sides))]
    if not pairs:
        return None
    leaders, challengers = ([-math.log(pair[place]) for pair in pairs] for place in (0, 1))
    return LeaderComparison(paired_comparison.leads(challengers, leaders, 1 - LEVEL)[-1], len(sides) == 2)


def _pairs(leaders: Sequence[float], challengers: Sequence[float], most: int) -> list[tuple[float, float]]:
    """Mean seconds of a step, the leader's and the challenger's, of groups of neighbours."""
    groups = min(len(leaders), most)
    ends = [len(leaders) * place // groups for place in range(groups + 1)]
    return [(fmean(leaders[a:b]), fmean(challengers[a:b])) for a, b in itertools.pairwise(ends)]


class Leader:
    """Of the windows of one run, by what they measured."""

    def __init__(self) -> None:
        self._window_values = WindowValues()
        #: What was measured, by the name that it has there.
        self._configs: dict[str, RunConfig] = {}
        #: The fastest exact one and its tokens per second, at the level at which the first one was measured.
        self._fastest: tuple[float, RunConfig] | None = None
        #: The number of its trial; None where that is not known.
        self.trial: int | None = None
        #: Who was measured again in the round that is on.
        self._round: set[str] = set()
        #: Whether rounds are without the baseline.
        self._spared = False

    @property
    def config(self) -> RunConfig | None:
        """The fastest exact one so far; None before the first."""
        return None if self._fastest is None else self._fastest[1]

    def remember(self, config: RunConfig, rate: float, trial: int) -> None:
        """An earlier controller of the study measured this one, exact as it is, as the fastest."""
        self._fastest, self.trial = (rate, config), trial

    def forget(self) -> None:
        """Windows may not have its values any more, and are held beside whoever is measured next."""
        self._window_values, self._round = WindowValues(), set()
        self._fastest = None if self.config is None else (0.0, self.config)
        self.trial = None

    def rank(
        self, config: RunConfig, summary: RunSummary, is_repeat: bool, spoilt: bool, trial: int | None = None
    ) -> bool:
        """A window of this ``trial`` measured this one, perhaps as a repeat, and lost too much where it is ``spoilt``.
        Whether it leads now: beside the leader around it, where it was held beside that.
        """
        rate, level, ratio = summary.tokens_per_second, summary.leader_level or 1.0, summary.leader_ratio
        if rate is None:
            return False
        if not spoilt:
            self._configs[_name(config)] = config
            self._window_values.note(_name(config), summary.step_samples, level, is_repeat)
        fastest = 0.0 if self._fastest is None else self._fastest[0]
        rate = rate * level if ratio is None else fastest * ratio
        if is_lossy(config.flat()) or rate <= fastest:
            return False
        self._fastest, self.trial = (rate, config), trial
        return True

    def rule_out(self, config: RunConfig) -> None:
        """What loses as this one does may not lead: nobody is given up because of it any more."""
        for name, faster in self._configs.items():
            if loses_alike(faster.flat(), config.flat()):
                self._window_values.forget(name)

    def level(self, steps: Sequence[float], whose: RunConfig | None = None) -> float | None:
        """What the ``steps`` of the leader, or ``whose`` they are, take over what they took when it was measured; None
        where that is not known.
        """
        config = whose or self.config
        return None if config is None else self._window_values.level(_name(config), steps)

    def compare_window(
        self,
        summary: RunSummary,
        before: Sequence[float],
        after: Sequence[float],
        whose: RunConfig | None = None,
    ) -> RunSummary | None:
        """A window beside the leader's steps around it, or ``whose`` they are; None where they tell nothing."""
        lead = lead_of_window(before, summary.step_samples, after)
        if lead is None:
            return None
        levels = [level for steps in (before, after) if (level := self.level(steps, whose)) is not None]
        value, low, high = lead.ratio
        return replace(
            summary,
            leader_level=math.prod(levels) ** (1 / len(levels)) if levels else None,
            leader_ratio=value,
            leader_ratio_low=low,
            leader_ratio_high=high,
            leader_trial=self.trial,
        )

    def why_behind(
        self,
        config: RunConfig,
        seconds: Sequence[float],
        before: Sequence[float],
        whose: RunConfig | None = None,
    ) -> str:
        """Why a window that measured these ``seconds`` so far, after those of the leader ``before``, or ``whose`` they
        are, cannot come to lead; empty while it may. Where steps differ so much that nobody can tell whether the
        leader became slower, it is taken to be: the window ran right after it.
        """
        tokens = config.batch.global_batch * config.data.sequence_length
        level, them = self.level(before, whose) or 1.0, whose or self.config
        level = max(level, self._window_values.time_ratio(_name(them), before) or level) if them else level
        if why := self._window_values.explain_pruning(seconds, tokens, level):
            return why
        lead = lead_of_window(before, seconds)
        if lead is None or not lead.slower or lead.ratio.high is None:
            return ""
        yardstick = "leader right before" if whose is None else "baseline on the same steps"
        return f"slower than the {yardstick}, {lead.ratio.high:.2f} of its rate at the most"

    def note_cost(self, seconds: float, steps: int, level: float) -> None:
        """See :meth:`WindowValues.note_cost`."""
        self._window_values.note_cost(seconds, steps, level)

    def check_enough(self, steps_left: int) -> None:
        """EndOfSearchError where ``steps_left`` are too few for what another window is likely to bring."""
        if why := self._window_values.why_enough(steps_left):
            raise EndOfSearchError(why)

    def check_round(self, config: RunConfig, steps_left: int) -> None:
        """Before a round in which leaders are measured again: half of one tells nothing. EndOfTrialsError where it is
        not worth it; CostlyBaselineError, once, where it is without the baseline.
        """
        name = _name(config)
        if not self._round or name in self._round:
            self._round = set()
            if why := self._window_values.not_worth_it(config.train.steps, steps_left, self._spared):
                if self._spared or self._window_values.not_worth_it(
                    config.train.steps, steps_left, spared=True
                ):
                    raise EndOfTrialsError(why)
                self._spared = True
                raise CostlyBaselineError(
                    f"{why}; they are measured again without the baseline, which takes most of that"
                )
        self._round.add(name)


def needs_after(before: Sequence[float], window: Sequence[float]) -> bool:
    """Whether a window is to be followed by steps of the leader: not where it is told apart by so much that to turn
    back would be a waste.
    """
    return max(window) * HOPELESS[LEAST_STEPS] > min(before)


def may_lead_after_all(window: Sequence[float], after: Sequence[float]) -> bool:
    """Of a window that was given up beside the leader's steps before it: whether the leader is as slow after it."""
    lead = lead_of_window(after, window)
    return lead is not None and lead.ratio.value * HOPELESS[LEAST_STEPS] > 1


def _name(config: RunConfig) -> str:
    """Of the values that can be turned, to tell configurations apart."""
    flat = config.flat()
    return name_of({key: value for key, value in flat.items() if live_part(key)})


def drift_words(seconds: Sequence[float], share: float) -> str:
    """What changed, in words; empty while nothing did. ``seconds`` are those of the steps since it was left alone.

    The last ``STEPS`` are compared with the first ones, and both halves of them have to agree: a hiccup is no drift.
    """
    if len(seconds) < 2 * STEPS:
        return ""
    first, last = fmean(seconds[:STEPS]), seconds[-STEPS:]
    ratios = [fmean(part) / first for part in (last[: STEPS // 2], last[STEPS // 2 :])]
    least, most = min(ratios), max(ratios)
    if least > 1 + share:
        return f"a step takes {100 * (fmean(last) / first - 1):.0f} % longer than when the search ended"
    if most < 1 / (1 + share):
        return f"a step takes {100 * (1 - fmean(last) / first):.0f} % less than when the search ended"
    return ""
