"""A selftest for people: a line for each check that says something, a count, and the file to attach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from workbench.selftest.progress import WORDS

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.selftest.results import Selftest

_COLORS = {"pass": "green", "fail": "red", "not_possible": "dim"}


def print_selftest(console: Console, found: Selftest, packed: Path) -> None:
    """Every check with its reason."""
    table = Table("", "", "", "", box=None, show_header=False, pad_edge=False)
    for row in found.checks:
        outcome = f"[{_COLORS[row.outcome]}]{WORDS[row.outcome]}[/]"
        table.add_row(outcome, row.title, f"{row.seconds:.0f} s", escape(row.reason))
    console.print(table)
    counts = found.outcomes
    words = f"{counts['pass']} passed, {counts['fail']} failed, {counts['not_possible']} not possible here"
    console.print(f"\n{words}, in {found.seconds:.0f} s on {found.ranks} ranks, device {found.device}")
    if found.interrupted:
        missing = len(found.asked) - len(found.checks)
        console.print(f"interrupted in {found.interrupted}: {missing} checks have no result")
    console.print(f"evidence to attach to a report: {escape(str(packed))}", soft_wrap=True)
