"""What a report of a lossy run's quality comes down to, in lines for the terminal and the page.

A quality report as people read it in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console


def lines(quality: Mapping[str, Any]) -> list[str]:
    """What a report of a lossy run's quality comes down to."""
    if quality["baseline"] is None:
        return ["no exact run with the same configuration, seed and data has finished yet; run one with:"]
    row = quality["compared"]
    if row is None:
        return [f"{quality['baseline']} is the exact baseline, but no step has a held-out loss of both"]
    sentences = [
        f"after {words.several(row['step'], 'steps')} ({row['tokens']:,} tokens) the held-out loss is "
        f"{words.loss(row['loss'])}, "
        f"and {words.loss(row['baseline_loss'])} for {quality['baseline']}: {100 * row['increase']:+.2f} %"
    ]
    if row["times_fewer_bytes"] is not None:
        sentences.append(f"it sent {row['times_fewer_bytes']:,.3g} times fewer bytes until then")
    own_seconds, exact_seconds = row["seconds_to_target"], row["baseline_seconds_to_target"]
    if own_seconds is not None and exact_seconds is not None:
        duration = (
            f"{words.seconds(own_seconds)} of training, the baseline after {words.seconds(exact_seconds)}"
        )
        sentences.append(f"a loss of {words.loss(row['target_loss'])} was reached after {duration}")
    return sentences


def print_quality(console: Console, quality: Mapping[str, Any]) -> None:
    """What it comes down to, then both curves side by side."""
    settings = ", ".join(f"{key}={value}" for key, value in quality["lossy"].items())
    console.print(f"[bold]{quality['run']}[/]  {settings}", soft_wrap=True)
    for line in lines(quality):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if quality["command"]:
        console.print(f"  {quality['command']}", markup=False, soft_wrap=True)
    if quality["curve"]:
        _curves(console, quality)
    for note in quality["notes"]:
        console.print(f"  note: {note}", markup=False, soft_wrap=True, style="dim")


def _curves(console: Console, quality: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = ("step", "held-out loss", "baseline", "difference", "s", "baseline, s", "MB sent", "baseline, MB")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    baseline_rows = {row["step"]: row for row in quality["baseline_curve"]}
    for row in quality["curve"]:
        other = baseline_rows.get(row["step"], {})
        difference = f"{100 * (row['loss'] / other['loss'] - 1):+.2f} %" if other else ""
        pairs = [
            *(_number(point.get("seconds"), 1) for point in (row, other)),
            *(_number(point.get("wire_bytes"), 1e-6) for point in (row, other)),
        ]
        table.add_row(f"{row['step']:,}", _loss(row), _loss(other), difference, *pairs)
    console.print(table)


def _loss(row: Mapping[str, Any]) -> str:
    return words.loss(row["loss"]) if row else ""


def _number(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:,.3f}"
