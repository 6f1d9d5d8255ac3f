"""A study's failures in the terminal: how many, and which settings lead to them.

A study, and lists of runs and studies, as people read them in a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuning.spec.objectives import KNOWN, aim_of, text
from tuning.storage.study_folder import LAG
from workbench.home.store import RunRow, StudyRow
from workbench.text import study, words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_failures(console: Console, document: dict[str, Any]) -> None:
    """How many, each ending with its phase and ranks, and rules in words; nothing where nothing failed."""
    failures = document.get("failures") or {}
    if not failures.get("endings"):
        return
    said = failures["line"] in (document.get("result_line") or "")
    line = "endings" if said else failures["line"]
    console.print(f"failures: {line}", markup=False, soft_wrap=True)
    for row in failures["endings"]:
        console.print(f"  {_ending(row)}", markup=False, soft_wrap=True)
    for rule in failures["rules"]:
        console.print(f"  {rule['words']}", markup=False, soft_wrap=True)


def _ending(row: Mapping[str, Any]) -> str:
    """``oom in backward on rank 0: trials 3 and 7; the last: too little memory``."""
    where = f" in {words.spoken(row['phase'])}" if row["phase"] else ""
    ranks = study.listed(row["ranks"])
    where += f" on rank{'s' if len(row['ranks']) > 1 else ''} {ranks}" if ranks else ""
    trials = f"trial{'s' if len(row['trials']) > 1 else ''} {study.listed(row['trials'])}"
    again = f", {row['tried_again']} tried again" if row["tried_again"] else ""
    last = "the last: " if len(row["trials"]) > 1 else ""
    reason = f"; {last}{row['reason']}" if row["reason"] else ""
    return f"{words.spoken(row['outcome'])}{where}: {trials}{again}{reason}"


_UNITS = {objective.unit for objective in KNOWN.values()}


def print_runs(console: Console, rows: Sequence[RunRow], older: int) -> None:
    """One line per run."""
    table = _table("run", "when", "outcome", "layout", "backend", "step", "tokens/s", "study")
    for row in rows:
        table.add_row(
            row.id,
            words.ago(row.created_unix),
            words.spoken(row.outcome or row.state),
            words.layout(row.layout),
            row.backend or words.NOTHING,
            words.seconds(row.step_seconds),
            words.number(row.tokens_per_second),
            f"{row.study} #{row.trial}" if row.study else "",
        )
    console.print(table)
    if older:
        console.print(f"... and {older} older ones; --all shows them")


def print_studies(console: Console, rows: Sequence[StudyRow]) -> None:
    """One line per study."""
    table = _table("study", "changed", "state", "trials", "best", "vs plain dp")
    for row in rows:
        trials = f"{words.number(row.trials_done)} of {words.number(row.trials_total)}"
        best = aim_of({"objective": row.objective}).words(row.best_value) if row.best_value else words.NOTHING
        several = f", {len(row.controllers)} controllers" if len(row.controllers) > 1 else ""
        state = words.spoken(row.state) + several
        table.add_row(row.name, words.ago(row.updated_unix), state, trials, best, row.gain_verdict or "")
    console.print(table)


def print_study(console: Console, document: dict[str, Any], most: int | None = None) -> None:
    """The result of a study, then its trials from the fastest to the slowest, then those that failed; ``most`` of
    them.
    """
    console.print(f"[bold]{document.get('study')}[/]  {words.spoken(document.get('state'))}")
    if len(members := document.get("controllers") or []) > 1:
        console.print(study.controllers(members), markup=False, soft_wrap=True)
    trials = document.get("trials") or []
    aim = aim_of(document)
    table = _table("trial", "run", "outcome", aim.unit, "95 %", "configuration")
    shown = sorted(trials, key=lambda trial: -(trial.get("value") or 0.0))[:most]
    for trial in shown:
        table.add_row(
            str(trial.get("number")),
            trial.get("run") or "",
            words.spoken(trial.get("outcome")),
            text(aim.shown(trial.get("value"))),
            words.around(*aim.bounds(trial.get("low"), trial.get("high"))),
            trial.get("label") or words.point(trial.get("config") or {}),
        )
    console.print(table)
    for line in _reasons(trials if len(shown) == len(trials) else shown):
        console.print(line, markup=False, soft_wrap=True)
    if len(shown) < len(trials):
        console.print(f"... and {len(trials) - len(shown):,} more trials; --all shows them")
    for line in _course(document):
        console.print(line, markup=False, soft_wrap=True)
    print_rounds(console, document)
    print_result(console, document)


def _reasons(trials: Sequence[dict[str, Any]]) -> list[str]:
    """Why trials ended as they did, each reason once."""
    said: dict[str, list[int]] = {}
    for trial in trials:
        if trial.get("reason"):
            said.setdefault(trial["reason"], []).append(trial["number"])
    return [
        f"trial{'s' if len(numbers) > 1 else ''} {study.listed(numbers)}: {reason}"
        for reason, numbers in said.items()
    ]


def print_rounds(console: Console, document: dict[str, Any]) -> None:
    """What was measured again in turns, if anything was, and what that decided."""
    columns = study.columns(document)
    if not columns:
        return
    table = _table(*columns)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    console.print(study.caption(document), markup=False, soft_wrap=True)


def _course(document: dict[str, Any]) -> list[str]:
    """What was asked of a study, and where it goes by now."""
    lines = [f"inherited: {earlier['words']}" for earlier in document.get("inherited") or []]
    if document.get("continues"):
        lines.append(f"continues {', '.join(document['continues'])}, with all trials")
    for event in document.get("steering") or []:
        given = " ".join(f"{key}={words.value(value)}" for key, value in event["arguments"].items())
        answer = "accepted" if event["accepted"] else "refused"
        said = f"{words.ago(event['at_unix'])} by {event['by']}: {event['command']} {given}".rstrip()
        lines.append(f"{said}: {answer}" + (f", {event['reason']}" if event["reason"] else ""))
    if document.get("sampler"):
        lines.append(f"sampler: {document['sampler']['name']} ({document['sampler']['reason']})")
    return lines


def print_result(console: Console, document: dict[str, Any]) -> None:
    """The line that a study comes down to, its front, budgets and constraints, what failed, and why its winner wins."""
    line = document.get("result_line") or "no trial has been measured yet"
    console.print(line, markup=False, soft_wrap=True)
    if document.get(LAG):
        console.print(document[LAG], markup=False, soft_wrap=True)
    _print_terms(console, document)
    print_failures(console, document)
    if document.get("why"):
        console.print(f"why: {document['why']['line']}", markup=False, soft_wrap=True)


def _print_terms(console: Console, document: dict[str, Any]) -> None:
    """Nothing for a study that has one objective, and neither constraints nor budgets."""
    if columns := document.get("pareto") and study.front(document):
        table = _table(*columns)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*map(str, row))
        console.print(table)
    for label, line in (
        ("note", document.get("pareto_note")),
        ("constraints of the best", study.kept(document)),
        ("budget", study.budget(document)),
    ):
        if line:
            console.print(f"{label}: {line}", markup=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        numeric = name in ("step", "trials", "95 %", "best", *_UNITS)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "configuration")
    return table
