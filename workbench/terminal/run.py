"""A run as people read it in a terminal: lines with labels, then a table of its collectives."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from engine.config.layout import RANKS
from engine.run.answers import refusals, report_files
from workbench.analysis.stall import Stall, sentence
from workbench.analysis.verdicts import minor_verdicts
from workbench.home.notes import Annotations, annotations_of
from workbench.home.runs import RunView, placement
from workbench.text import run as run_text
from workbench.text import step, words
from workbench.text.quantities import Column

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LABEL_WIDTH = 13
#: Of the ranks of a placement, that many are named.
_SHOWN_RANKS = 8
#: What a terminal calls colours of a badge that it has by another name.
_TERMINAL_COLORS = {"orange": "dark_orange", "gray": "bright_black"}


def print_run(console: Console, view: RunView, stall: Stall | None = None) -> None:
    """Everything that matters about one run, most important first."""
    console.print(f"[bold]{view.id}[/]  {_ending(view)}", soft_wrap=True)
    if stall is not None:
        console.print(f"  {'stalled':<{_LABEL_WIDTH}}{sentence(stall)}", markup=False, soft_wrap=True)
    for label, text in _lines(view):
        console.print(f"  {label:<{_LABEL_WIDTH}}{text}", markup=False, soft_wrap=True)
    if view.summary and (rows := view.summary.communication):
        console.print(column_table("communication per step and rank", run_text.communication_columns(rows)))
        for reason in run_text.missing_reasons(rows, view.summary):
            console.print(f"  {reason}", markup=False, soft_wrap=True, style="dim")
    for answer in report_files(view.orders):
        console.print(
            f"  {answer.command} of rank {answer.rank}: {answer.text}", soft_wrap=True, markup=False
        )
    for line in refusals(view.orders):
        console.print(f"  refused: {line}", soft_wrap=True, markup=False)
    for line in view.last_lines:
        console.print(f"  | {line}", markup=False, soft_wrap=True, style="dim")


def remark_lines(annotations: Annotations) -> Iterator[tuple[str, str]]:
    """What people say of a run or a study, with labels; the lines of a note stand below each other."""
    if annotations.tags:
        yield "tags", ", ".join(annotations.tags)
    for number, line in enumerate(annotations.note.splitlines()):
        yield "" if number else "note", line


def _ending(view: RunView) -> str:
    state = view.outcome or view.state
    color = words.look(state)[0]
    reason = view.reason.replace("[", r"\[")
    return f"[{_TERMINAL_COLORS.get(color, color)}]{words.ending_words(state)}[/]" + (
        f": {reason}" if reason else ""
    )


def _lines(view: RunView) -> Iterator[tuple[str, str]]:
    labels, summary = view.labels, view.summary
    yield from remark_lines(annotations_of(view.folder))
    if "study" in labels:
        yield "study", f"{labels['study']}, trial {labels.get('trial', '?')}"
    if view.job is not None:
        yield "command", shlex.join(view.job.command)
    yield "layout", _layout(view)
    if placement_rows := placement(view.status):
        yield "placement", _placement(placement_rows)
    for text in run_text.changes(view.changes):
        yield "changed", text
    for row in view.memory_plans:
        yield "memory plan", step.memory_plan(row)
    for plan in view.plans[-1:]:
        yield "plan", step.compression_plan(plan)
    if summary:
        if view.state != "ended":
            yield "so far", run_text.so_far(summary)
        yield from run_text.lines(summary)
        for verdict in summary.verdicts:
            yield from run_text.verdict_lines(verdict)
        for episode in summary.episodes:
            yield "for a while", run_text.episode(episode)
        if text := run_text.minor_findings_text(minor_verdicts(summary.findings, summary.verdicts)):
            yield "below limits", text
    yield "folder", str(view.folder)


def _layout(view: RunView) -> str:
    status, degrees = view.status, view.layout
    text = " ".join(
        f"{axis}={size}" for axis, size in degrees.items() if axis in ("dp", "tp", "pp") or size > 1
    )
    if view.job is not None:
        text = f"{words.FOREIGN}, whose layout nobody told"
    elif RANKS in degrees:
        text = "the trainer's own"
    if status.backend:
        text += f"  ({words.several(status.world_size or 0, 'ranks')}, {status.backend}: {status.backend_reason or ''})"
    return text


def _placement(rows: list[dict[str, Any]]) -> str:
    parts = [
        f"rank {row['rank']} on device {row['device']}" + (f" ({row['host']})" if row["host"] else "")
        for row in rows[:_SHOWN_RANKS]
    ]
    hidden_count = len(rows) - len(parts)
    return ", ".join(parts) + (f", and {hidden_count:,} more (--json)" if hidden_count else "")


def column_table(title: str, columns: Sequence[Column]) -> Table:
    """Quantities as text, numbers on the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None)
    for column in columns:
        table.add_column(column.name, justify="right" if column.unit else "left", overflow="fold")
    for row in zip(*(column.texts for column in columns), strict=True):
        table.add_row(*(escape(text) for text in row))
    return table
