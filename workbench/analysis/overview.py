"""What goes on in a home now: studies with their leader and how long they will take, runs, and what is wrong."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from engine.config.errors import InputError
from engine.run import progress, run_folder
from engine.run.outcome import ORDERLY
from tuning.report.study_result import Gain, StudyResult
from tuning.report.summary_line import gain_text
from tuning.storage.controllers import HELD
from tuning.storage.study_folder import StudyView
from workbench.analysis.studies import StudyDocument
from workbench.home.store import RunRow, StudyRow
from workbench.text import words

#: Trials whose mean length says how long the next ones take.
_RECENT_TRIALS = 10
#: A pace is not told from fewer steps.
_FEWEST_STEPS = 5
#: Runs that ended badly are a matter of the page for so long.
RECENT_SECONDS = 3600.0
_SHOWN_PROBLEMS = 6
#: Less free space than this ends runs.
_LEAST_FREE_BYTES = 2 * 2**30


Load = Callable[[str], tuple[StudyView, StudyDocument]]


@dataclass(frozen=True, slots=True)
class CurrentTrial:
    """A trial that is being measured."""

    number: int
    run: str | None
    label: str


@dataclass(frozen=True, slots=True)
class CurrentStudy:
    """A study. ``seconds_left`` is of its search: trials left by the mean length of the last ones, over those that are
    measured at a time; None while nothing can be said. ``repeats`` says whether the best are measured again afterwards.
    """

    name: str
    state: str
    phase: str | None
    trials_done: int
    trials_total: int
    seconds_left: float | None
    repeats: bool
    leader: str | None
    leader_trial: int | None
    leader_value: float | None
    unit: str
    gain: Gain | None
    gain_line: str
    now: list[CurrentTrial]
    failed: int


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """A run of no study that goes on. ``steps`` is 0 of a run that its time ends, and of a job that is not ours.

    ``seconds_left`` is by its pace so far, to its last step or its time limit, or what is left of its time;
    ``share_done`` of its steps or of its time. Both are None where nothing can be said.
    """

    id: str
    layout: dict[str, int]
    ranks: int | None
    step: int
    steps: int
    seconds_left: float | None
    share_done: float | None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, what to do, and where to look: kind is run, study or machine."""

    text: str
    remedy: str
    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Overview:
    """``last`` is the study that ended last; None while one runs, or where there is none."""

    home: str
    studies: list[CurrentStudy]
    runs: list[CurrentRun]
    problems: list[Problem]
    last: CurrentStudy | None
    run_count: int
    study_count: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def study_now(view: StudyView, document: StudyDocument) -> CurrentStudy:
    """A study as it stands."""
    result, aim = document.result, document.result.aim
    best, gain = result.best, result.gain
    under_way = view.journal.under_way if view.alive else ()
    labels = {row.number: row.label for row in [*result.trials, *result.confirmations]}
    return CurrentStudy(
        name=view.name,
        state=view.state,
        phase=view.status.phase if view.alive else None,
        trials_done=result.trials_done,
        trials_total=result.trials_total,
        seconds_left=_seconds_left(result, len(under_way)) if view.alive else None,
        repeats=view.file is not None and view.file.confirm_repeats > 0,
        leader=best.label if best else None,
        leader_trial=best.trial if best else None,
        leader_value=aim.to_display(best.value) if best else None,
        unit=aim.unit,
        gain=gain,
        gain_line=_gain_line(result),
        now=[CurrentTrial(trial.number, trial.run, labels.get(trial.number, "")) for trial in under_way],
        failed=_count_failures(result),
    )


def _count_failures(result: StudyResult) -> int:
    """Trials that ended badly; not one that was tried again, as it is one of those to come."""
    endings = result.failures.endings if result.failures else []
    return len({number for row in endings for number in row.trials} - result.tried_again)


def _gain_line(result: StudyResult) -> str:
    best, baseline, gain = result.best, result.baseline, result.gain
    if best is None or gain is None:
        return ""
    if baseline is not None and best.config == baseline.config:
        return "nothing was faster than the baseline" + (" so far" if result.state == "running" else "")
    return gain_text(gain, "the baseline", result.aim.objective.better)


def _seconds_left(result: StudyResult, at_a_time: int) -> float | None:
    """Of the search, by the mean length of its last trials."""
    durations = [row.seconds for row in result.trials if row.outcome != "running" and row.seconds]
    trials_left = result.trials_total - result.trials_done
    if not durations or trials_left <= 0:
        return None
    return trials_left * fmean(durations[-_RECENT_TRIALS:]) / max(1, at_a_time)


def run_now(home: Path, row: RunRow, now: float) -> CurrentRun:
    """A run that goes on, from its progress page."""
    folder = home / row.id
    train = (run_folder.read_json(folder / run_folder.CONFIG) or {}).get("train") or {}
    ranks = progress.read_all(folder)
    step, budget = min((rank.step for rank in ranks), default=0), train.get("seconds")
    steps = 0 if budget else int(train.get("steps") or 0)
    seconds_left, share_done = None, step / steps if steps else None
    if budget and row.started_unix:
        seconds_left = max(0.0, row.started_unix + budget - now)
        share_done = 1 - seconds_left / budget
    elif steps and row.started_unix and step >= _FEWEST_STEPS:
        seconds_left = max(0.0, (steps - step) * (now - row.started_unix) / step)
        limit = train.get("timeout_seconds")
        seconds_left = min(seconds_left, max(0.0, row.started_unix + limit - now)) if limit else seconds_left
    share = None if share_done is None else min(1.0, max(0.0, share_done))
    return CurrentRun(row.id, dict(row.layout), row.world_size, step, steps, seconds_left, share)


def problems(
    home: Path, run_rows: Sequence[RunRow], study_rows: Sequence[StudyRow], now: float
) -> list[Problem]:
    """What somebody should look at, the most pressing first."""
    rows = [*_hanging(home, run_rows), *_cut_off(study_rows), *_full(home), *_ended_badly(run_rows, now)]
    return rows[:_SHOWN_PROBLEMS]


def _hanging(home: Path, rows: Sequence[RunRow]) -> list[Problem]:
    """A hang that was noticed and is still being looked at."""
    problems_found = []
    for row in rows:
        if row.state not in ("running", "starting"):
            continue
        hang = run_folder.RunStatus.from_folder(home / row.id).hang
        if hang is not None and hang.reason:
            problems_found.append(
                Problem(f"{row.id} hangs: {hang.reason}", "look at its ranks", "run", row.id)
            )
    return problems_found


def _cut_off(rows: Sequence[StudyRow]) -> list[Problem]:
    return [
        Problem(
            f"the study {row.name} was interrupted: its process is gone", "continue it", "study", row.name
        )
        for row in rows
        if row.state == "interrupted"
    ]


def _full(home: Path) -> list[Problem]:
    try:
        free = shutil.disk_usage(home).free
    except OSError:
        return []
    if free >= _LEAST_FREE_BYTES:
        return []
    return [
        Problem(f"only {words.gib(free)} are free on the disk of {home}", "prune old runs", "machine", "")
    ]


def _ended_badly(rows: Sequence[RunRow], now: float) -> list[Problem]:
    """Lately, and not as a trial: of those the study tells how many failed, and goes on."""
    return [
        Problem(
            f"{row.id} ended: {words.ending_words(row.outcome)}" + (f", {row.reason}" if row.reason else ""),
            "see its last lines",
            "run",
            row.id,
        )
        for row in rows
        if row.study is None
        and row.outcome is not None
        and row.outcome not in ORDERLY
        and now - (row.ended_unix or row.created_unix) < RECENT_SECONDS
    ]


def overview(home: Path, run_rows: Sequence[RunRow], study_rows: Sequence[StudyRow], load: Load) -> Overview:
    """``load`` gives view and document of a study by its name. A study that cannot be read is left out."""
    now = time.time()
    running_names = [row.name for row in study_rows if row.state in HELD]
    ended = [row.name for row in study_rows if row.name not in running_names]
    studies_now = [study for name in running_names if (study := _study(load, name)) is not None]
    last = next(
        (study for name in ended[:3] if not studies_now and (study := _study(load, name)) is not None), None
    )
    active = [row for row in run_rows if row.state in ("running", "starting") and not row.study]
    return Overview(
        home=str(home),
        studies=studies_now,
        runs=[run_now(home, row, now) for row in active],
        problems=problems(home, run_rows, study_rows, now),
        last=last,
        run_count=len(run_rows),
        study_count=len(study_rows),
    )


def _study(load: Load, name: str) -> CurrentStudy | None:
    try:
        view, document = load(name)
    except InputError:
        return None
    return study_now(view, document)
