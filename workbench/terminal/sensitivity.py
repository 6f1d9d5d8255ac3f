"""What mattered in a study, as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tuning.sensitivity.effects import KnobRow
from tuning.sensitivity.outcomes import AnalysisResult, Fanova, Importance, Shap
from tuning.sensitivity.report import Sensitivity
from tuning.spec.objectives import Aim
from workbench.figures.search.sensitivity import pairs_that_count
from workbench.text import words
from workbench.text.sensitivity import direction, evidence_words, loss, pair

if TYPE_CHECKING:
    from rich.console import Console


def print_sensitivity(console: Console, sensitivity: Sensitivity) -> None:
    """Importance, what was worked out on demand, dependence and neighbours; what is not known says why."""
    console.print(
        f"[bold]{sensitivity.study}[/]  {sensitivity.trials:,} trials ended: {sensitivity.measured:,} measured, "
        f"{sensitivity.failed:,} failed"
    )
    _shares(console, "Importance (PED-ANOVA: what sets the best trials apart)", sensitivity.importance)
    _fanova(console, "Importance (fANOVA: share of the spread explained alone)", sensitivity.fanova)
    _shap(console, sensitivity.shap)
    _dependence(console, sensitivity, sensitivity.aim)
    _neighbours(console, sensitivity)


def _shares(console: Console, title: str, importance: Importance) -> None:
    if not importance.values:
        _say(console, title, importance.reason)
        return
    _table(
        console,
        title,
        SHARES,
        [(words.short(key), _share(part), "") for key, part in importance.values.items()],
    )
    _stands_on(console, importance.trials or 0)


def _fanova(console: Console, title: str, answer: AnalysisResult[Fanova]) -> None:
    fanova = answer.outcome
    if fanova is None or not fanova.values:
        _say(console, title, fanova.reason if fanova else answer.reason)
        return
    errors = fanova.plus_minus or {}
    rows = [
        (
            words.short(key),
            _share(part),
            f"+- {_share(error)}" if (error := errors.get(key)) is not None else "",
        )
        for key, part in fanova.values.items()
    ]
    total = [("knobs together", _share(fanova.interactions or 0.0), "")]
    _table(console, title, SHARES, rows + total)
    _stands_on(console, fanova.trials)
    _note(console, answer.note)


SHARES = ("knob", "share", "")


def _stands_on(console: Console, trials: int) -> None:
    if trials:
        console.print(f"  {trials:,} measured trials", style="dim")


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _shap(console: Console, answer: AnalysisResult[Shap]) -> None:
    shap = answer.outcome
    if shap is None:
        _say(console, "SHAP", answer.reason)
        return
    for title, part, unit in (
        ("SHAP: average change of a trial's value by each knob", shap.value, "%"),
        ("SHAP: average change of the chance of failure by each knob", shap.failure, "points"),
    ):
        if part.knobs is None:
            _say(console, title, part.reason)
            continue
        rows = [(words.short(row.key), f"{row.effect:.2f} {unit}", direction(row)) for row in part.knobs]
        rows += [(pair(row), f"{row.effect:.2f} {unit}", "together") for row in pairs_that_count(part)]
        _table(console, title, ("knob", "effect", "which way"), rows)
        name, score = part.score
        held_out = f"on trials held out the model has {name} {score:.2f}"
        console.print(f"  {part.trials:,} trials; {held_out}", style="dim")
    _note(console, answer.note)


def _dependence(console: Console, sensitivity: Sensitivity, aim: Aim) -> None:
    rows = list(_dependence_rows(sensitivity.dependence, aim))
    header = ("knob", "value", "trials", "failed", f"mean, {aim.unit}", "best", "predicted mean")
    _table(console, "Value by knob setting", header, rows)


def _dependence_rows(knobs: Sequence[KnobRow], aim: Aim) -> Iterator[tuple[str, ...]]:
    for knob in knobs:
        if knob.reason:
            yield words.short(knob.key), words.NOTHING, knob.reason, "", "", "", ""
            continue
        for number, value_row in enumerate(knob.values):
            scores = [
                words.number(aim.to_display(value))
                for value in (value_row.mean, value_row.best, value_row.predicted)
            ]
            name = "" if number else words.short(knob.key)
            yield (
                name,
                words.choice(knob.key, value_row.value),
                str(value_row.trials),
                str(value_row.failed),
                *scores,
            )


def _neighbours(console: Console, sensitivity: Sensitivity) -> None:
    winner, title = sensitivity.winner, "The winner's neighbours"
    if winner is None:
        _say(console, title, "nothing was measured yet")
        return
    rows = [
        (
            words.short(row.key),
            f"{words.choice(row.key, row.winner_value)} -> {words.choice(row.key, row.value)}",
            *loss(row),
            evidence_words(row),
        )
        for row in sensitivity.neighbours
    ]
    title = f"{title}: neighbours of trial {winner.trial} ({winner.label})"
    _table(console, title, ("knob", "step", "loses", "95 % (model: 90 %)", "from"), rows)


def _table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, no_wrap=name != "from")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(title, markup=False, soft_wrap=True, style="italic")
    console.print(table)


def _say(console: Console, title: str, reason: str) -> None:
    console.print()
    console.print(f"{title}: {reason or 'not known'}", markup=False, soft_wrap=True)


def _note(console: Console, note: str) -> None:
    if note:
        console.print(f"  {note}", markup=False, style="dim")
