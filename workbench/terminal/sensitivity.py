"""What mattered in a study, as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuning.spec.objectives import Aim, aim_of
from workbench.figures.sensitivity import pairs_that_count
from workbench.text import words
from workbench.text.sensitivity import direction, loss, pair, stands

if TYPE_CHECKING:
    from rich.console import Console

Document = Mapping[str, Any]


def print_sensitivity(console: Console, found: Document) -> None:
    """Importance, what was worked out on demand, dependence and neighbours; what is not known says why."""
    console.print(
        f"[bold]{found['study']}[/]  {found['trials']:,} trials ended: {found['measured']:,} measured, "
        f"{found['failed']:,} failed"
    )
    _shares(console, "Importance (PED-ANOVA: what sets the best trials apart)", found["importance"])
    _shares(console, "Importance (fANOVA: share of the spread explained alone)", found["fanova"])
    _shap(console, found["shap"])
    _dependence(console, found, aim_of(found))
    _neighbours(console, found)


def _shares(console: Console, title: str, found: Document) -> None:
    if not found.get("values"):
        _said(console, title, found.get("reason"))
        return
    errors = found.get("plus_minus") or {}
    rows = [
        (words.short(key), _share(share), f"+- {_share(errors[key])}" if errors.get(key) is not None else "")
        for key, share in found["values"].items()
    ]
    if found.get("interactions") is not None:
        rows.append(("knobs together", _share(found["interactions"]), ""))
    _table(console, title, ("knob", "share", ""), rows)
    if found.get("trials"):
        console.print(f"  {found['trials']:,} measured trials", style="dim")
    _note(console, found)


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def _shap(console: Console, found: Document) -> None:
    if not found.get("known"):
        _said(console, "SHAP", found.get("reason"))
        return
    value, failure = found["value"], found["failure"]
    for title, part, unit in (
        ("SHAP: average change of a trial's value by each knob", value, "%"),
        ("SHAP: average change of the chance of failure by each knob", failure, "points"),
    ):
        if part["knobs"] is None:
            _said(console, title, part["reason"])
            continue
        rows = [
            (words.short(row["key"]), f"{row['effect']:.2f} {unit}", direction(row)) for row in part["knobs"]
        ]
        rows += [(pair(row), f"{row['effect']:.2f} {unit}", "together") for row in pairs_that_count(part)]
        _table(console, title, ("knob", "effect", "which way"), rows)
        score = f"R^2 {part['r_squared']:.2f}" if "r_squared" in part else f"AUC {part['auc']:.2f}"
        console.print(f"  {part['trials']:,} trials; on trials held out the model has {score}", style="dim")
    _note(console, found)


def _dependence(console: Console, found: Document, aim: Aim) -> None:
    rows = list(_dependence_rows(found["dependence"], aim))
    header = ("knob", "value", "trials", "failed", f"mean, {aim.unit}", "best", "predicted mean")
    _table(console, "Value by knob setting", header, rows)


def _dependence_rows(knobs: Sequence[Document], aim: Aim) -> Iterator[tuple[str, ...]]:
    for knob in knobs:
        if knob["reason"]:
            yield words.short(knob["key"]), words.NOTHING, knob["reason"], "", "", "", ""
            continue
        for number, at in enumerate(knob["values"]):
            shown = [words.number(aim.shown(at[name])) for name in ("mean", "best", "predicted")]
            name = "" if number else words.short(knob["key"])
            yield name, words.choice(knob["key"], at["value"]), str(at["trials"]), str(at["failed"]), *shown


def _neighbours(console: Console, found: Document) -> None:
    winner, title = found["winner"], "The winner's neighbours"
    if winner is None:
        _said(console, title, "nothing was measured yet")
        return
    rows = [
        (
            words.short(row["key"]),
            f"{words.choice(row['key'], row['winner_value'])} -> {words.choice(row['key'], row['value'])}",
            *loss(row),
            stands(row),
        )
        for row in found["neighbours"]
    ]
    title = f"{title}: neighbours of trial {winner['trial']} ({winner['label']})"
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


def _said(console: Console, title: str, reason: Any) -> None:
    console.print()
    console.print(f"{title}: {reason or 'not known'}", markup=False, soft_wrap=True)


def _note(console: Console, found: Document) -> None:
    if found.get("note"):
        console.print(f"  {found['note']}", markup=False, style="dim")
