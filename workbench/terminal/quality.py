"""What a report of a lossy run's quality comes down to, in lines for the terminal and the page.

A quality report as people read it in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console


def lines(found: Mapping[str, Any]) -> list[str]:
    """What a report of a lossy run's quality comes down to."""
    if found["baseline"] is None:
        return ["no exact run with the same configuration, seed and data has finished yet; run one with:"]
    row = found["compared"]
    if row is None:
        return [f"{found['baseline']} is the exact baseline, but no step has a held-out loss of both"]
    told = [
        f"after {words.several(row['step'], 'steps')} ({row['tokens']:,} tokens) the held-out loss is "
        f"{words.loss(row['loss'])}, "
        f"and {words.loss(row['baseline_loss'])} for {found['baseline']}: {100 * row['increase']:+.2f} %"
    ]
    if row["times_fewer_bytes"] is not None:
        told.append(f"it sent {row['times_fewer_bytes']:,.3g} times fewer bytes until then")
    own, exact = row["seconds_to_target"], row["baseline_seconds_to_target"]
    if own is not None and exact is not None:
        took = f"{words.seconds(own)} of training, the baseline after {words.seconds(exact)}"
        told.append(f"a loss of {words.loss(row['target_loss'])} was reached after {took}")
    return told


def print_quality(console: Console, found: Mapping[str, Any]) -> None:
    """What it comes down to, then both curves side by side."""
    settings = ", ".join(f"{key}={value}" for key, value in found["lossy"].items())
    console.print(f"[bold]{found['run']}[/]  {settings}", soft_wrap=True)
    for line in lines(found):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if found["command"]:
        console.print(f"  {found['command']}", markup=False, soft_wrap=True)
    if found["curve"]:
        _curves(console, found)
    for note in found["notes"]:
        console.print(f"  note: {note}", markup=False, soft_wrap=True, style="dim")


def _curves(console: Console, found: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = ("step", "held-out loss", "baseline", "difference", "s", "baseline, s", "MB sent", "baseline, MB")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    beside = {row["step"]: row for row in found["baseline_curve"]}
    for row in found["curve"]:
        other = beside.get(row["step"], {})
        apart = f"{100 * (row['loss'] / other['loss'] - 1):+.2f} %" if other else ""
        pairs = [
            *(_number(one.get("seconds"), 1) for one in (row, other)),
            *(_number(one.get("wire_bytes"), 1e-6) for one in (row, other)),
        ]
        table.add_row(f"{row['step']:,}", _loss(row), _loss(other), apart, *pairs)
    console.print(table)


def _loss(row: Mapping[str, Any]) -> str:
    return words.loss(row["loss"]) if row else ""


def _number(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:,.3f}"
