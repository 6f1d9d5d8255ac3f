"""Why not this layout: is it legal, does it fit, how far is it behind the best of as many ranks, and by which term?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from tuning.predict.forecast import forecasts
from tuning.predict.forecast_document import WORDS, Forecast, percent
from tuning.predict.plan import plans
from tuning.predict.plan.families import lost_terms
from tuning.predict.target import Target


class SlowdownTerm(NamedTuple):
    """A term, the seconds that it takes more than in the best layout, their share of all that is lost, and words."""

    name: str
    seconds: float
    share: float
    words: str


@dataclass(frozen=True, slots=True)
class LayoutExplanation:
    """``problems`` are all broken rules; ``forecast`` is None with some. ``best`` is of the same ranks and batch, and
    fits; it is None for the ``reason`` that is told. ``slower`` is over it: 0.14 is 14 %, below 0 it is faster.
    """

    layout: dict[str, int]
    problems: tuple[str, ...]
    forecast: Forecast | None
    best: Forecast | None
    reason: str | None
    slower: float | None
    terms: tuple[SlowdownTerm, ...]

    @property
    def legal(self) -> bool:
        """Whether every rule is kept."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "legal": self.legal,
            "problems": list(self.problems),
            "layout": self.layout,
            "fits": self.forecast.fits if self.forecast else None,
            "slower": self.slower,
            "terms": [term._asdict() for term in self.terms],
            "best": plans.row(self.best) if self.best else None,
            "reason": self.reason,
            "prediction": self.forecast.as_dict() if self.forecast else None,
        }


def why_not(config: RunConfig, target: Target) -> LayoutExplanation:
    """All that speaks against a configuration.

    Raises:
        InputError: it has not the cluster's size, or the device lacks a figure.
    """
    layout = layout_of(config)
    target.check(layout.world_size)
    problems = tuple(_problems(config))
    own_forecast = None if problems else forecasts([config], target)[0]
    best, reason = _best(config, target, layout.world_size)
    slower = (
        own_forecast.step_seconds.median / best.step_seconds.median - 1 if own_forecast and best else None
    )
    terms = tuple(_slower_terms(own_forecast, best)) if own_forecast and best else ()
    return LayoutExplanation(layout.as_dict(), problems, own_forecast, best, reason, slower, terms)


def _problems(config: RunConfig) -> list[str]:
    try:
        return [str(problem) for problem in rules.problems(config)]
    except InputError as problem:
        return [str(problem)]


def _best(config: RunConfig, target: Target, ranks: int) -> tuple[Forecast | None, str | None]:
    try:
        planned = plans.best(config, target.adapt_to_config(config), ranks)
    except InputError as error:
        return None, str(error)
    return planned, None if planned else "no layout of as many ranks and this batch fits safely"


def _slower_terms(own_forecast: Forecast, best: Forecast) -> list[SlowdownTerm]:
    """Terms that take longer; none where the configuration is as fast as the best."""
    if own_forecast.step_seconds.median <= best.step_seconds.median:
        return []
    terms = lost_terms(dict(own_forecast.breakdown), dict(best.breakdown))
    whole = sum(
        max(own_forecast.breakdown[name] - best.breakdown[name], 0.0) for name in own_forecast.breakdown
    )
    return [
        SlowdownTerm(
            name, seconds, seconds / whole, f"{WORDS[name]}: {percent(seconds / whole)} of what is lost"
        )
        for name, seconds in terms
    ]
