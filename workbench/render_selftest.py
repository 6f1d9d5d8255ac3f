"""A selftest for people: a line for each check that says something, a count, and the file to attach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from workbench.selftest.progress import WORDS

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.selftest.results import Selftest

#: Files that a line names; the document names all of them.
_NAMED = 3
_COLORS = {"pass": "green", "fail": "red", "not_possible": "dim"}


def print_selftest(console: Console, found: Selftest, kept: Path) -> None:
    """Every check with its reason, and where the evidence is: the zip, or the folder where there is none."""
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
    console.print(f"evidence to attach to a report: {escape(str(kept))}", soft_wrap=True)


def losses(not_kept: Mapping[str, str]) -> list[str]:
    """A line for each reason why files could not be kept, which names some of them, the document first."""
    by_reason = defaultdict[str, list[str]](list)
    for name, reason in not_kept.items():
        by_reason[reason].append(name)
    return [f"not kept ({reason}): {_some(names)}" for reason, names in by_reason.items()]


def _some(names: list[str]) -> str:
    named = ", ".join(sorted(names, key=lambda name: name.count("/"))[:_NAMED])
    return f"{named} and {len(names) - _NAMED} more" if len(names) > _NAMED else named
