"""A study in words and rows, for terminal and page: budgets, constraints, the front, its confirmation, and its trials,
some of thousands to look at and all of them to take away. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from engine.config.knobs.catalogue import facts_of
from tuning.spec.objectives import Aim, MeasuredValue, text
from tuning.storage.controllers import ControllerRow
from tuning.storage.controllers import words as controller_words
from workbench.text import words

if TYPE_CHECKING:
    from tuning.report.study_result import ArmRow, ConfirmationRounds, Measurement, StudyResult
    from tuning.search.budgets import BudgetRow

_MOST_LISTED = 8
#: A budget of which so much was used is used up.
_USED_UP = 0.95
_ENDED = {
    "trials": "the trials are used up",
    "wall_seconds": "the time is used up",
    "gpu_hours": "the GPU-hours are used up",
    "money": "the money is used up",
    "space": "every legal configuration was measured",
    "nothing_runs": "nothing runs",
    "command": "it was stopped by command",
}


def budget(result: StudyResult) -> str:
    """What is used of each budget that has a limit, and what ended the search; empty if only trials are counted."""
    limited_rows = result.budget.limited_rows() if result.budget else {}
    if not result.budget or set(limited_rows) <= {"trials"}:
        return ""
    parts = [_budget_text(name, row, result) for name, row in limited_rows.items()]
    ended = _ended(result.budget.stopped_by or "", limited_rows)
    return "; ".join(parts) + (f"; the search ended: {ended}" if ended else "")


def _ended(stopped_by: str, rows: Mapping[str, BudgetRow]) -> str:
    """What ended the search. What it kept for a confirmation that was not needed is not used up."""
    row = rows.get(stopped_by)
    if row is None or stopped_by == "trials" or row.used >= _USED_UP * (row.limit or 0):
        return _ENDED.get(stopped_by, "")
    return "what is left would not do for another trial and its confirmation"


def phases(result: StudyResult) -> list[str]:
    """One line: which groups of knobs were turned one after the other, and in which trials; none without phases."""
    parts = [f"{row.name} ({_in_trials(row.trials)})" for row in result.phases]
    return [f"knobs are turned in phases: {', '.join(parts)}"] if parts else []


def _in_trials(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no trial yet"
    return f"trial {numbers[0]}" if len(numbers) == 1 else f"trials {numbers[0]} to {numbers[-1]}"


def fixed_knob_columns(result: StudyResult) -> dict[str, list[Any]]:
    """The knobs that a study without a space does not turn, and why."""
    return {
        "knob": [facts_of(key).title for key in result.left_alone],
        "why it is left alone": list(result.left_alone.values()),
        "key": list(result.left_alone),
    }


def fixed_knob_lines(result: StudyResult) -> list[str]:
    """The same in lines, a reason each."""
    by_reason: dict[str, list[str]] = {}
    for key, why in result.left_alone.items():
        by_reason.setdefault(why, []).append(facts_of(key).title)
    return [f"left alone: {', '.join(titles)}: {why}" for why, titles in by_reason.items()]


def _budget_text(name: str, row: BudgetRow, result: StudyResult) -> str:
    spent, limit, reserved = row.used, row.limit or 0, row.kept_for_confirmation
    if name == "trials":
        return f"{spent} of {words.several(int(limit), 'trials')}"
    if name == "wall_seconds":
        words_used = f"{words.rough_duration(spent)} of {words.rough_duration(limit)}"
    else:
        money = (result.price.currency if result.price else "") or "money"
        words_used = f"{text(spent)} of {text(limit)} {'GPU-hours' if name == 'gpu_hours' else money}"
    if not reserved or result.state == "ended":
        return words_used
    share = words.percent(reserved / limit) if limit else words.NOTHING
    return f"{words_used} ({share} is kept for the confirmation)"


def controllers(members: Sequence[ControllerRow]) -> str:
    """Who works on a study, and at which trial."""
    parts = [
        f"{controller_words(member)}: {'waits' if member.trial is None else f'trial {member.trial}'}"
        for member in members
    ]
    return f"{len(members)} controllers: " + "; ".join(parts)


def constraints(result: StudyResult) -> list[str]:
    """One line for each trial that has a value and breaks a constraint, or cannot tell whether it does."""
    return [f"trial {row.number}: {limit.reason}" for row in result.trials for limit in row.broken]


def constraint_words(result: StudyResult) -> str:
    """What the best trial leaves of each constraint; empty without any."""
    best = result.best.trial if result.best else None
    limits = next((row.limits for row in result.trials if row.number == best), [])
    return "; ".join(limit.reason for limit in limits)


def front(result: StudyResult) -> dict[str, list[Any]]:
    """The points of a pareto front, column by column: trial, whether it is the best, each objective, configuration."""
    points = result.pareto or []
    return {
        "trial": [point.trial for point in points],
        "decides": ["best" if point.decides else "" for point in points],
        **{aim.unit: [value(point.objectives[aim.name], aim) for point in points] for aim in result.aims},
        "configuration": [point.label for point in points],
    }


def value(measured: MeasuredValue, aim: Aim) -> str:
    """A measure and its interval; without one it is a single value of the run."""
    numbers = [aim.to_unit(end) for end in (measured.value, measured.low, measured.high)]
    interval = words.interval_ends(numbers[1], numbers[2])
    return text(numbers[0]) + (f" ({interval})" if interval else "")


def number_list(numbers: Sequence[int]) -> str:
    """``1, 2 and 5``; of many how many there are."""
    if len(numbers) > _MOST_LISTED:
        return f"{numbers[0]}, {numbers[1]} and {len(numbers) - 2} more"
    *first, last = map(str, numbers) if numbers else ("",)
    return f"{', '.join(first)} and {last}" if first else last


def confirmation_columns(result: StudyResult) -> dict[str, list[str]]:
    """One line for each arm that was measured again: its mean over its windows, and itself beside the baseline; empty
    where nothing was.
    """
    rounds = result.confirmation_rounds
    if not rounds:
        return {}
    aim, arms = result.aim, rounds.arms
    # Where the baseline cannot run the best of the search is what the others stand beside.
    plain = any(arm.is_baseline for arm in arms)
    return {
        "trial": [str(arm.trial) for arm in arms],
        "role": [_role(arm, rounds, aim) for arm in arms],
        f"search, {aim.unit}": [text(aim.to_display(arm.searched_value)) for arm in arms],
        f"again, {aim.unit}": [text(aim.to_display(_mean(arm))) for arm in arms],
        "windows": [str(len(arm.rounds)) for arm in arms],
        "beside the baseline" if plain else f"beside trial {rounds.beside}": [
            ""
            if arm.is_baseline or arm.trial == rounds.beside
            else f"{arm.ratio:.3f} ({words.interval(arm.low, arm.high, 3) or 'no interval'})"
            for arm in arms
        ],
        "peak memory": [words.gib(arm.peak_memory_bytes) for arm in arms],
        "changed settings": [str(arm.complexity) for arm in arms],
        "configuration": [arm.label for arm in arms],
    }


def confirmation_progress(rounds: ConfirmationRounds) -> str:
    """How far a confirmation is that goes on."""
    done = max(len(arm.rounds) for arm in rounds.arms)
    used, allowed = text(rounds.used), text(rounds.allowed)
    return f"measuring the leaders again: {words.several(done, 'rounds')}, {used} of at most {allowed} trial lengths"


def caption(result: StudyResult) -> str:
    """How often trials were measured again, who is recommended by which rule, and what differed; empty without."""
    confirmation = result.confirmation_rounds
    if not confirmation:
        return ""
    from tuning.analysis.recommendation import SPEED, rule_title  # most commands describe no confirmation

    windows, rounds = len(confirmation.order), max(len(arm.rounds) for arm in confirmation.arms)
    cost_text = (
        f"{text(confirmation.used)} of {text(confirmation.allowed)} trial lengths"
        if confirmation.allowed
        else ""
    )
    by_value = confirmation.decided_by == SPEED and not _is_speed(result.aim)
    rule = "its value" if by_value else rule_title(confirmation.decided_by)
    lines = [
        f"measured again in {words.several(windows, 'windows')} over {words.several(rounds, 'rounds')}"
        + (f", {cost_text}" if cost_text else ""),
        f"trial {confirmation.recommended} is recommended by {rule}: {confirmation.why}",
    ]
    if confirmation.spared:
        lines.append(confirmation.spared)
    if len({len(arm.rounds) for arm in confirmation.arms}) > 1:
        lines.append(
            "who was told apart left the rounds; two arms are compared over the rounds that both had"
        )
    return "; ".join([*lines, *confirmation.flags])


def _mean(arm: ArmRow) -> float | None:
    values = [row.value for row in arm.rounds if row.value]
    return geometric_mean(values) if values else None


def _is_speed(aim: Aim) -> bool:
    return aim.objective.most == "the fastest"


def _role(arm: ArmRow, rounds: ConfirmationRounds, aim: Aim) -> str:
    roles = [
        ("baseline", arm.is_baseline),
        ("fastest" if _is_speed(aim) else "best", arm.trial == rounds.winner),
        ("recommended", arm.trial == rounds.recommended),
    ]
    return ", ".join(name for name, is_it in roles if is_it)


#: So many rows of a table are shown at a time.
SHOWN = 200
NEWEST, BEST, FAILED = "Newest", "Best", "Without a value"
CHOICES = (NEWEST, BEST, FAILED)
_COPIED = ("run", "seconds", "source", "attempt", "retry_of", "confirms", "reason")


def all_rows(result: StudyResult) -> list[Measurement]:
    """Trials of the search and those that measured one again, by number."""
    return sorted([*result.trials, *result.confirmations], key=lambda row: row.number)


def window(rows: Sequence[Measurement], choice: str = NEWEST) -> tuple[list[Measurement], str]:
    """At most ``SHOWN`` of the rows, what was asked for last, and in words which these are; no words for all."""
    matching_rows = list(rows)
    if choice == BEST:
        valued = [(row.value, -row.number, row) for row in rows if row.value is not None]
        matching_rows = [row for *_, row in sorted(valued, key=lambda item: item[:2])]
    elif choice == FAILED:
        matching_rows = [row for row in rows if row.failed]
    last_rows = matching_rows[-SHOWN:]
    if len(last_rows) == len(rows):
        return last_rows, ""
    kind = {NEWEST: "the newest", BEST: "the best"}.get(choice, "the newest without a value,")
    extent = (
        f"{kind} {len(last_rows):,}"
        if len(last_rows) < len(matching_rows)
        else f"all {len(last_rows):,} {_OF[choice]}"
    )
    return last_rows, f"Showing {extent} of {len(rows):,} trials."


_OF = {NEWEST: "", BEST: "with a value", FAILED: "without a value"}


def as_csv(result: StudyResult) -> str:
    """All trials, a line each; values in the unit that people see, knobs under their dotted keys."""
    rows, aim = all_rows(result), result.aim
    keys = list(dict.fromkeys(key for row in rows for key in row.config))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "outcome", aim.unit, "low", "high", *keys, *_COPIED])
    for row in rows:
        measured = [row.number, row.outcome, aim.to_display(row.value), *aim.bounds(row.low, row.high)]
        writer.writerow([*measured, *map(row.config.get, keys), *(getattr(row, name) for name in _COPIED)])
    return text.getvalue()
