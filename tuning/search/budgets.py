"""Budgets of a study: what its trials have used, what is kept for the confirmation, and what ended the search. Pure.

One of the ends is a space of which nothing runs (:class:`InfeasibleSpace`): by predictions, else by the trials alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from engine.config.errors import several
from engine.run.outcome import GOOD
from tuning.analysis import confirmation, leaderboard
from tuning.search import confirmation_cost
from tuning.search.acquisition import FORETOLD, MOST_FAILURES
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

#: How the two kinds of news begin.
CERTAIN, SO_FAR = "nothing runs", "nothing ran"
_ONWARDS = "; to search all the same: prior: none in the study file"


class InfeasibleSpace(NamedTuple):
    """What a study says of a space in which nothing ran, and whether it ``ends`` the search."""

    words: str
    ends: bool


def failed_trials(state: StudyState) -> list[Trial]:
    """Trials of the search whose configuration failed, if none came to its end; else nothing."""
    searched = [trial for trial in state.trials if trial.confirms is None]
    if any(_ran(trial) for trial in searched):
        return []
    return [trial for trial in searched if any(violation > 0 for violation in trial.constraints.values())]


def _ran(trial: Trial) -> bool:
    return trial.value is not None or trial.outcome in GOOD


def infeasible_by_prediction(words: str) -> InfeasibleSpace:
    """What :func:`tuning.search.acquisition.explain_infeasibility` says."""
    ends = words.startswith(CERTAIN)
    return InfeasibleSpace(words + (_ONWARDS if ends else ""), ends)


def infeasible_by_trials(state: StudyState) -> InfeasibleSpace | None:
    """Without predictions: after twelve failures, and none of them ends the search."""
    failed = failed_trials(state)
    if len(failed) < MOST_FAILURES:
        return None
    counts = Counter(str(trial.outcome) for trial in failed)
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    last = next((f"; the last: {trial.reason}" for trial in reversed(failed) if trial.reason), "")
    return InfeasibleSpace(f"{SO_FAR} in {several(len(failed), 'trials')}: {words}{last}", ends=False)


def infeasible_note(state: StudyState) -> str:
    """What was said last; what the trials alone say is told of all that ended since, too."""
    notes = [note for note in state.notes if note.startswith((CERTAIN, SO_FAR))]
    if not notes:
        return ""
    now = infeasible_by_trials(state)
    return now.words if now and notes[-1].startswith(SO_FAR) and FORETOLD not in notes[-1] else notes[-1]


def is_infeasible(state: StudyState) -> bool:
    """Whether the search ended because nothing runs."""
    certain = any(note.startswith(CERTAIN) for note in state.notes)
    return certain and not any(map(_ran, state.trials))


_HOUR_SECONDS = 3600.0
#: Of a limit so many whole lengths are kept for each that is measured again; what is left over goes there, too.
RESERVED = 2
#: But not more than this share of what the first trial leaves: of a tight limit something is left to be compared.
MOST_RESERVED = 0.5
#: What the study notes when there is nothing left to draw, and before it, if that is so.
LEFT_OUT = "settings that lose what one did that lost too much, or more, were left out"
SPACE_IS_MEASURED = "every legal point of the space was measured"


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """What trials have used, what the confirmation will need, and the limit; None without one."""

    used: int | float
    kept_for_confirmation: int | float = 0
    limit: int | float | None = None


@dataclass(frozen=True, slots=True)
class Budgets:
    """Each kind that can be told; ``money`` only with a price. ``stopped_by`` is the one that ended the search,
    ``space`` if all of it was measured, ``nothing_runs`` if that was to be believed, ``command`` if somebody ended it;
    None while it goes on.
    """

    trials: BudgetRow | UnsetType = UNSET
    wall_seconds: BudgetRow | UnsetType = UNSET
    gpu_hours: BudgetRow | UnsetType = UNSET
    money: BudgetRow | UnsetType = UNSET
    stopped_by: str | None = None

    def limited_rows(self) -> dict[str, BudgetRow]:
        """Those that have a limit, by name."""
        rows = {name: getattr(self, name) for name in ("trials", "wall_seconds", "gpu_hours", "money")}
        return {name: row for name, row in rows.items() if row and row.limit is not None}


class Use(NamedTuple):
    """A kind of budget, and what the ``next`` trial will probably use of it."""

    row: BudgetRow
    next: int | float


def budgets(state: StudyState, file: StudyFile) -> dict[str, Use]:
    """Each kind that can be told, by the name of its field in :class:`Budgets`; worked out once for each state."""
    return state.once("budgets", file, lambda: _budgets(state, file))


def _budgets(state: StudyState, file: StudyFile) -> dict[str, Use]:
    ended = [(trial, trial.seconds) for trial in state.trials if trial.outcome is not None]
    limits, times = _limits(file), min(file.confirm_repeats, RESERVED)
    trial_count = len(leaderboard.counted_trials(state))
    uses = {"trials": Use(BudgetRow(trial_count, 0, leaderboard.trials_wanted(state, file)), 1)}
    for name, rate in _kinds(file).items():
        used = [_trial_use(name, rate, file, *ended_trial) for ended_trial in ended]
        usual, limit = median(used) if used else 0.0, limits.get(name)
        most = math.inf if limit is None else max(0.0, MOST_RESERVED * (limit - usual))
        reserved = times * _confirmation_use(state, file, name, rate)
        uses[name] = Use(BudgetRow(sum(used), min(reserved, most), limit), usual)
    return uses


def _trial_use(name: str, rate: float, file: StudyFile, trial: Trial, seconds: float) -> float:
    """What a trial that takes so many seconds uses of a kind: its ranks count but where it is time that passes."""
    ranks = 1 if name == "wall_seconds" else file.search_space.ranks_of(trial.config)
    return rate * ranks * seconds


def _confirmation_use(state: StudyState, file: StudyFile, name: str, rate: float) -> float:
    """What whole runs use of those that would be measured again now: the best and the baseline where that is not known
    yet.
    """
    arms = confirmation.arms(state, file)
    if arms:
        return sum(
            _trial_use(name, rate, file, arm, confirmation_cost.whole_seconds(state, file, arm))
            for arm in arms
        )
    ended = [trial for trial in state.trials if trial.outcome is not None]
    usual = confirmation_cost.usual_seconds(state)
    return 2 * median([_trial_use(name, rate, file, trial, usual) for trial in ended] or [0.0])


def exhausted_budget(state: StudyState, file: StudyFile, under_way: int = 0) -> str | None:
    """The first kind that one more trial would use up, with the confirmation of the best and with so many trials
    ``under_way``; None while all suffice.
    """
    for name, (row, following) in budgets(state, file).items():
        wanted = row.used + row.kept_for_confirmation + following * (1 + under_way)
        if row.limit is not None and wanted > row.limit:
            return name
    return None


def is_spent(state: StudyState, file: StudyFile) -> bool:
    """Whether one more trial would exceed a limit of time or money."""
    return any(
        name != "trials" and row.limit is not None and row.used + following > row.limit
        for name, (row, following) in budgets(state, file).items()
    )


def no_room_again(state: StudyState, file: StudyFile, trials: Sequence[Trial]) -> bool:
    """Whether one more window of each of these would exceed a limit, so that nothing more is measured again."""
    uses, rates = budgets(state, file), _kinds(file)
    length = {trial.number: confirmation_cost.window_seconds(state, file, trial) for trial in trials}
    for name, rate in rates.items():
        row = uses[name].row
        wanted = sum(_trial_use(name, rate, file, trial, length[trial.number]) for trial in trials)
        if row.limit is not None and row.used + wanted > row.limit:
            return True
    return False


def document(state: StudyState, file: StudyFile, study_state: str) -> Budgets:
    """For people and ``--json``."""
    rows = {name: use.row for name, use in budgets(state, file).items()}
    return Budgets(**rows, stopped_by=stop_reason(state, file, study_state))


def stop_reason(state: StudyState, file: StudyFile, study_state: str) -> str | None:
    """What ended the search: first what its own trials used up, for confirmations come after it."""
    if kind := exhausted_budget(_search(state), file):
        return kind
    if study_state in ("running", "paused", "stopping", "interrupted"):
        return exhausted_budget(state, file)
    if is_infeasible(state):
        return "nothing_runs"
    return "space" if SPACE_IS_MEASURED in state.notes else exhausted_budget(state, file) or "command"


def _search(state: StudyState) -> StudyState:
    """The state without any confirmation."""
    if all(trial.confirms is None for trial in state.trials):
        return state
    searched = tuple(trial for trial in state.trials if trial.confirms is None)
    return state.once("search", None, lambda: replace(state, trials=searched))


def _kinds(file: StudyFile) -> dict[str, float]:
    """What a second of each kind uses; all but the first of a second of one rank."""
    price = file.price.per_gpu_hour / _HOUR_SECONDS if file.price else None
    money = {} if price is None else {"money": price}
    return {"wall_seconds": 1.0, "gpu_hours": 1 / _HOUR_SECONDS} | money


def _limits(file: StudyFile) -> dict[str, float | None]:
    budget = file.budget
    limits = {"gpu_hours": budget.gpu_hours, "money": budget.money} if budget else {}
    return {"wall_seconds": file.budget_seconds} | limits
