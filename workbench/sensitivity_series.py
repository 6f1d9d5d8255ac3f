"""The numbers behind the figures of what mattered in a study, made from its document by pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tuning.spec.objectives import Aim, aim_of
from workbench import words
from workbench.sensitivity_words import pair

Document = Mapping[str, Any]
#: More bars than this are not told apart.
SHOWN_KNOBS, SHOWN_PAIRS = 10, 3
_LEAST_PART = 0.02


class ShareSeries(NamedTuple):
    """Shares in percent by knob, None where a method says nothing of a knob; ``reason`` where there is none at all."""

    names: list[str]
    pedanova: list[float | None]
    fanova: list[float | None]
    fanova_errors: list[float | None]
    reason: str


class EffectSeries(NamedTuple):
    """Mean effects by knob, then by pair, in ``unit``. ``ways``: up, down, mixed, none, category or together."""

    names: list[str]
    effects: list[float]
    ways: list[str]
    unit: str
    score: str
    reason: str


class Panel(NamedTuple):
    """One knob: for each value what was measured there, and what the model predicts with all else equal."""

    name: str
    values: list[str]
    trials: list[int]
    failed: list[int]
    means: list[float | None]
    bests: list[float | None]
    predicted: list[float | None]


class DependenceSeries(NamedTuple):
    """``left_out``: knobs without two values to compare, and why."""

    panels: list[Panel]
    left_out: list[str]
    unit: str


def share_series(found: Document) -> ShareSeries:
    """Of PED-ANOVA and fANOVA, whichever there are."""
    first, second = found["importance"].get("values") or {}, found["fanova"].get("values") or {}
    if not first and not second:
        return ShareSeries([], [], [], [], str(found["importance"].get("reason") or "not known yet"))
    keys = sorted({*first, *second}, key=lambda key: -max(first.get(key, 0.0), second.get(key, 0.0)))
    keys, errors = keys[:SHOWN_KNOBS], found["fanova"].get("plus_minus") or {}
    return ShareSeries(
        [words.short(key) for key in keys],
        [_percent(first.get(key)) for key in keys],
        [_percent(second.get(key)) for key in keys],
        [_percent(errors.get(key)) for key in keys],
        "",
    )


def effect_series(part: Document | None, reason: str = "") -> EffectSeries:
    """Of ``value`` or ``failure`` of SHAP's outcome; None with the reason while there is none."""
    if part is None or part["knobs"] is None:
        return EffectSeries([], [], [], "", "", str(part["reason"]) if part else reason)
    knobs, pairs = part["knobs"][:SHOWN_KNOBS], pairs_that_count(part)
    score = f"R² {part['r_squared']:.2f}" if "r_squared" in part else f"AUC {part['auc']:.2f}"
    return EffectSeries(
        [words.short(row["key"]) for row in knobs] + [pair(row) for row in pairs],
        [row["effect"] for row in [*knobs, *pairs]],
        [row["direction"] or "category" for row in knobs] + ["together"] * len(pairs),
        "%" if part["unit"] == "percent" else "percentage points",
        f"{part['trials']:,} trials, {score} on trials held out",
        "",
    )


def pairs_that_count(part: Document) -> list[Document]:
    """The first few pairs, none that is next to nothing beside the first knob."""
    least = _LEAST_PART * max((row["effect"] for row in part["knobs"]), default=0.0)
    return [row for row in part["pairs"][:SHOWN_PAIRS] if row["effect"] > least]


def dependence_series(found: Document) -> DependenceSeries:
    """Knobs with two values or more, those with the largest differences first."""
    aim = aim_of(found)
    told = [row for row in found["dependence"] if not row["reason"]]
    left = [f"{words.short(row['key'])}: {row['reason']}" for row in found["dependence"] if row["reason"]]
    panels = sorted((_panel(row, aim) for row in told), key=_spread, reverse=True)
    return DependenceSeries(panels, left, aim.unit)


def _panel(row: Document, aim: Aim) -> Panel:
    rows = row["values"]
    return Panel(
        words.short(row["key"]),
        [words.choice(row["key"], at["value"]) for at in rows],
        [at["trials"] for at in rows],
        [at["failed"] for at in rows],
        [aim.shown(at["mean"]) for at in rows],
        [aim.shown(at["best"]) for at in rows],
        [aim.shown(at["predicted"]) for at in rows],
    )


def _spread(panel: Panel) -> float:
    known = [value for value in panel.predicted if value is not None]
    known = known if len(known) > 1 else [value for value in panel.means if value is not None]
    return max(known) - min(known) if known else 0.0


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
