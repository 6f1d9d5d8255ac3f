"""A selftest for people: a line for each check as it ends, then a table, a count, and the file to attach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from engine.config.errors import several
from workbench.terminal.progress import ProgressBar

if TYPE_CHECKING:
    from rich.console import Console

    from tuning.execution.signals import Interruption
    from workbench.selftest.registry import Check
    from workbench.selftest.results import Row, Selftest

WORDS = {"pass": "pass", "fail": "FAIL", "not_possible": "not possible"}


class SelftestProgress(ProgressBar):
    """A line for each check as it ends; where somebody watches, also which one runs and for how long."""

    def __init__(self, interruption: Interruption, total: int) -> None:
        self._ended = 0
        super().__init__("starting", total, "checks", interruption, "stopping; finished checks are kept")

    def tell(self, check: Check, row: Row | None) -> None:
        """A check begins, or ended with this row."""
        self._ended += row is not None
        self.show(check.title, self._ended)
        if row is not None:
            self.say(f"{WORDS[row.outcome]:<12}  {row.name:<15} {row.seconds:6.1f} s  {row.reason}")


#: Files that a line names; the document names all of them.
_NAMED = 3
_COLORS = {"pass": "green", "fail": "red", "not_possible": "dim"}


def print_selftest(console: Console, selftest: Selftest, folder: Path) -> None:
    """Every check with its reason, and where the evidence is: the zip, or the folder where there is none."""
    table = Table("", "", "", "", box=None, show_header=False, pad_edge=False)
    for row in selftest.checks:
        outcome = f"[{_COLORS[row.outcome]}]{WORDS[row.outcome]}[/]"
        table.add_row(outcome, row.title, f"{row.seconds:.0f} s", escape(row.reason))
    console.print(table)
    counts = selftest.outcomes
    ended = f"{counts['pass']} passed, {counts['fail']} failed, {counts['not_possible']} not possible here"
    console.print(
        f"\n{ended}, in {selftest.seconds:.0f} s on {several(selftest.ranks, 'ranks')}, device {selftest.device}"
    )
    if selftest.interrupted:
        missing = len(selftest.asked) - len(selftest.checks)
        console.print(f"interrupted in {selftest.interrupted}: {missing} checks have no result")
    console.print(f"evidence to attach to a report: {escape(str(folder))}", soft_wrap=True)


def losses(not_kept: Mapping[str, str]) -> list[str]:
    """A line for each reason why files could not be kept, which names some of them, the document first."""
    by_reason = defaultdict[str, list[str]](list)
    for name, reason in not_kept.items():
        by_reason[reason].append(name)
    return [f"not saved ({reason}): {_some(names)}" for reason, names in by_reason.items()]


def _some(names: list[str]) -> str:
    named = ", ".join(sorted(names, key=lambda name: name.count("/"))[:_NAMED])
    return f"{named} and {len(names) - _NAMED} more" if len(names) > _NAMED else named
