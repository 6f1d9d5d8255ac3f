"""A study's failures in the terminal: how many, and which settings lead to them.

A study, and lists of runs and studies, as people read them in a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuning.spec.objectives import KNOWN, find_aim, text
from workbench.analysis import automatic_choices, command_report, live_report, winner_explanation
from workbench.home.store import RunRow, StudyRow
from workbench.terminal.run import remark_lines
from workbench.text import study, words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tuning.report.failures import EndingRow
    from tuning.report.study_result import StudyResult, TrialRow
    from workbench.analysis.studies import StudyDocument
    from workbench.home.notes import Annotations


def print_failures(console: Console, result: StudyResult) -> None:
    """How many, each ending with its phase and ranks, and rules in words; nothing where nothing failed."""
    board = result.failures
    if not board or not board.endings:
        return
    line = "endings" if board.line in result.result_line else board.line
    rows = [*map(_ending, board.endings), *(rule.words for rule in board.rules)]
    _print_lines(console, [f"failures: {line}", *(f"  {row}" for row in rows)])


def _ending(row: EndingRow) -> str:
    """``oom in backward on rank 0: trials 3 and 7; the last: too little memory``."""
    place_text = f" in {words.ending_words(row.phase)}" if row.phase else ""
    ranks = study.number_list(row.ranks)
    place_text += f" on rank{'s' if len(row.ranks) > 1 else ''} {ranks}" if ranks else ""
    trials = f"trial{'s' if len(row.trials) > 1 else ''} {study.number_list(row.trials)}"
    retries_text = f", {row.tried_again} tried again" if row.tried_again else ""
    last = "the last: " if len(row.trials) > 1 else ""
    reason = f"; {last}{row.reason}" if row.reason else ""
    return f"{words.ending_words(row.outcome)}{place_text}: {trials}{retries_text}{reason}"


_UNITS = {objective.unit for objective in KNOWN.values()}


def print_runs(console: Console, rows: Sequence[RunRow], older: int) -> None:
    """One line per run."""
    has_remarks = any(map(_remark_cell, rows))
    titles = ("run", "when", "outcome", "layout", "backend", "step", "tokens/s", "study")
    table = _table(*titles, *(["said"] if has_remarks else []))
    for row in rows:
        table.add_row(
            row.id,
            words.age_text(row.created_unix),
            words.ending_words(row.outcome or row.state),
            words.layout(row.layout),
            row.backend or words.NOTHING,
            words.seconds(row.step_seconds),
            words.number(row.tokens_per_second),
            f"{row.study} #{row.trial}" if row.study else "",
            *([_remark_cell(row)] if has_remarks else []),
        )
    console.print(table)
    if older:
        console.print(f"... and {older} older ones; --all shows them")


def print_studies(console: Console, rows: Sequence[StudyRow]) -> None:
    """One line per study."""
    has_remarks = any(map(_remark_cell, rows))
    titles = ("study", "changed", "state", "trials", "best", "over its baseline")
    table = _table(*titles, *(["said"] if has_remarks else []))
    for row in rows:
        trials = f"{words.number(row.trials_done)} of {words.number(row.trials_total)}"
        best = find_aim(row.objective).words(row.best_value) if row.best_value else words.NOTHING
        controllers_text = f", {len(row.controllers)} controllers" if len(row.controllers) > 1 else ""
        state = words.ending_words(row.state) + controllers_text
        cells = (row.name, words.age_text(row.updated_unix), state, trials, best, row.gain_verdict or "")
        table.add_row(*cells, *([_remark_cell(row)] if has_remarks else []))
    console.print(table)


def _remark_cell(row: RunRow | StudyRow) -> str:
    """Tags and the first line of a note, as one cell."""
    from rich.markup import escape

    tags = [f"#{tag}" for tag in row.tags]
    return escape(" ".join([*tags, *row.note.splitlines()[:1]]))


def print_study(
    console: Console, document: StudyDocument, most: int | None = None, annotations: Annotations | None = None
) -> None:
    """The result of a study, then its trials from the fastest to the slowest, then those that failed; ``most`` of
    them.
    """
    result = document.result
    console.print(f"[bold]{result.study}[/]  {words.ending_words(result.state)}")
    for label, line in remark_lines(annotations) if annotations else ():
        console.print(f"  {label:<6}{line}", markup=False, soft_wrap=True)
    members = document.controllers or []
    _print_lines(console, [study.controllers(members)] if len(members) > 1 else [])
    aim = result.aim
    table = _table("trial", "run", "outcome", aim.unit, "95 %", "configuration")
    best_trials = sorted(result.trials, key=lambda trial: -trial.ranking)[:most]
    for trial in best_trials:
        table.add_row(
            str(trial.number),
            trial.run or "",
            words.ending_words(trial.outcome),
            text(aim.to_display(trial.value)),
            words.interval_ends(*aim.bounds(trial.low, trial.high)),
            trial.label or words.point(trial.config),
        )
    console.print(table)
    hidden_count = len(result.trials) - len(best_trials)
    _print_lines(console, _reasons(best_trials if hidden_count else result.trials))
    if hidden_count:
        console.print(f"... and {words.several(hidden_count, 'more trials')}; --all shows them")
    _print_lines(console, _course(result))
    if columns := study.confirmation_columns(result):
        _print_columns(console, columns)
        _print_lines(console, [study.caption(result)])
    print_result(console, document)


def _reasons(trials: Sequence[TrialRow]) -> list[str]:
    """Why trials ended as they did, each reason once."""
    by_reason: dict[str, list[int]] = {}
    for trial in trials:
        if trial.reason:
            by_reason.setdefault(trial.reason, []).append(trial.number)
    return [
        f"trial{'s' if len(numbers) > 1 else ''} {study.number_list(numbers)}: {reason}"
        for reason, numbers in by_reason.items()
    ]


def _course(result: StudyResult) -> list[str]:
    """What was asked of a study, and where it goes by now."""
    lines = [f"inherited: {earlier_study.words}" for earlier_study in result.inherited]
    if result.continues:
        lines.append(f"continues {', '.join(result.continues)}, with all trials")
    for event in result.steering:
        arguments = " ".join(f"{key}={words.value(value)}" for key, value in event.arguments.items())
        answer = "accepted" if event.accepted else "refused"
        command = f"{words.age_text(event.at_unix)} by {event.by}: {event.command} {arguments}".rstrip()
        lines.append(f"{command}: {answer}" + (f", {event.reason}" if event.reason else ""))
    if result.sampler:
        lines.append(f"sampler: {result.sampler.name} ({result.sampler.reason})")
    return [*lines, *study.phases(result), *study.fixed_knob_lines(result)]


def print_result(console: Console, document: StudyDocument) -> None:
    """The line that a study comes down to, its front, budgets and constraints, what failed, and why its winner wins."""
    result = document.result
    lag = [result.optuna_lag] if result.optuna_lag else []
    _print_lines(
        console, [*(result.result_lines or [result.result_line or "no trial has been measured yet"]), *lag]
    )
    if result.pareto:
        _print_columns(console, study.front(result))
    terms = {
        "note": result.pareto_note,
        "constraints of the best": study.constraint_words(result),
        "budget": study.budget(result),
    }
    _print_lines(console, [f"{label}: {line}" for label, line in terms.items() if line])
    print_failures(console, result)
    if document.live:
        _print_lines(console, live_report.lines(document.live))
    if document.command:
        _print_lines(console, [command_report.line(document.command)])
    if document.why:
        _print_lines(console, [f"why: {winner_explanation.line(document.why)}"])
    _print_lines(console, [f"picked: {automatic_choices.line(pick)}" for pick in document.picks])


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _print_columns(console: Console, columns: dict[str, list[Any]]) -> None:
    table = _table(*columns)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(str, row))
    console.print(table)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        numeric = name in ("step", "trials", "95 %", "best", *_UNITS)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "configuration")
    return table
