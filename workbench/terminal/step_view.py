"""A step of a run in a terminal: its ranks, the calls of one of them, or one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.records.step_view import StepView
from workbench.terminal.run import column_table
from workbench.text import step_view as drill_text

if TYPE_CHECKING:
    from rich.console import Console


def print_step(console: Console, view: StepView, one_call: bool) -> None:
    """As the page Steps shows it."""
    if view.rank is None:
        console.print(column_table(f"{view.run}, step {view.step:,}", drill_text.step_columns(view.ranks)))
        if slowest := view.slowest:
            console.print(drill_text.slowest(slowest.call, slowest.rank), markup=False, soft_wrap=True)
            place = f"--rank {slowest.rank} --call {slowest.call.key.link_text()}"
            console.print(f"  to see it: add {place}", markup=False, soft_wrap=True, style="dim")
    elif one_call:
        (call,) = view.calls
        hosts = {row.rank: row.host for row in view.ranks}
        title = f"{call.key.link_text()} in step {view.step:,}"
        console.print(drill_text.meeting(call, view.rank), markup=False, soft_wrap=True)
        console.print(column_table(title, drill_text.collective_call_columns(call, hosts)))
        console.print(drill_text.collective_call_note(call), markup=False, soft_wrap=True, style="dim")
    else:
        title = f"{view.run}, collectives of rank {view.rank:,} in step {view.step:,}"
        console.print(column_table(title, drill_text.call_columns(view.calls, view.rank)))
