"""What a running study shows: status.json, result.json, and news for whoever displays progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.ownership import Owner
from tuning.analysis import leaderboard
from tuning.report.result import result
from tuning.report.study_result import StudyResult
from tuning.search import budgets
from tuning.search.surrogate import PredictionRecord
from tuning.sensitivity.importance import importance
from tuning.sensitivity.outcomes import Importance
from tuning.spec.study_file import StudyFile
from tuning.storage import controllers, study_folder
from tuning.storage.controllers import HELD, StudyControllers, StudyStatus, is_same_member, words
from tuning.storage.state import StudyState, Trial

HEARTBEAT_SECONDS = 5.0
#: The result is written after each trial while that is cheap, and never later than this.
RESULT_SECONDS = 5.0
#: How much longer than writing it takes, a result is left as it is.
RESULT_PATIENCE = 20.0
#: Importance is worked out again once there are so many more trials.
IMPORTANCE_GROWTH = 1.05
#: From here on files are for machines: writing them indented takes five times as long.
LONG_RESULT = 1_000


@dataclass(frozen=True, slots=True)
class Update:
    """News: a trial began (no outcome yet) or ended, or the study changed its state or has something to say.
    ``controller`` names the controller of a trial that is not ours; ``running`` are all that run now, ``best`` is the
    best of the search so far.
    """

    state: str
    phase: str
    trials_done: int
    trials_total: int
    trial: Trial | None = None
    note: str = ""
    controller: str = ""
    running: tuple[Trial, ...] = ()
    best: Trial | None = None


class StatusWriter:
    """Keeps the study's folder readable while its owner works."""

    def __init__(
        self,
        folder: Path,
        file: StudyFile,
        members: StudyControllers,
        on_update: Callable[[Update], None] | None,
    ) -> None:
        self._folder, self.file, self._members, self._on_update = folder, file, members, on_update
        self._written = 0.0
        self._result_due = 0.0
        self.predictions: Callable[[], PredictionRecord | None] = lambda: None
        self._is_waiting = False
        self._importance: tuple[int, Importance] = (0, Importance())
        self._shown = -1
        self._announced: set[int] = set()
        self.state, self.phase = "running", "baseline"
        #: What Optuna's database lacks, in words.
        self.lag = ""

    def show(
        self, study: StudyState, trial: Trial | None = None, note: str = "", controller: str = ""
    ) -> None:
        """Write the status and tell the display."""
        self._write_status(study)
        if trial is not None and trial.outcome is not None:
            self._announced.add(trial.number)
        if self._on_update is not None:
            trial_count = len(leaderboard.counted_trials(study))
            counts = self.state, self.phase, trial_count, leaderboard.trials_wanted(study, self.file)
            best = leaderboard.make_leaderboard(study, self.file).best
            self._on_update(Update(*counts, trial, note, controller, study.under_way, best))

    def show_others(self, study: StudyState) -> None:
        """Tell the display of trials that ended at other controllers."""
        if study.version == self._shown:
            return
        self._shown = study.version
        for trial in study.trials:
            if trial.outcome is not None and trial.number not in self._announced:
                self.show(study, trial, controller="" if self._is_ours(trial) else words(trial.lease))
                self.refresh_result(study)

    def skip_ended_trials(self, study: StudyState) -> None:
        """What ended by now is no news."""
        self._announced |= {trial.number for trial in study.trials if trial.outcome is not None}

    @property
    def is_watched(self) -> bool:
        """Whether somebody displays progress."""
        return self._on_update is not None

    def heartbeat(self, study: StudyState) -> None:
        """Show now and then that the owner lives, tell of other controllers, and write a result that waits."""
        self._members.heartbeat()
        self.show_others(study)
        if time.monotonic() - self._written > HEARTBEAT_SECONDS:
            self._write_status(study)
        if self._is_waiting:
            self.refresh_result(study)

    def refresh_result(self, study: StudyState) -> None:
        """Write the result so far, or let it wait a little: with thousands of trials that takes a while."""
        self._is_waiting = True
        began = time.monotonic()
        if began >= self._result_due:
            self.write_result(study)
            ended = time.monotonic()
            self._result_due = ended + min(RESULT_SECONDS, RESULT_PATIENCE * (ended - began))

    def write_result(self, study: StudyState, last: bool = False) -> StudyResult:
        """Write the result so far; the knobs' importance is in it, so that the page needs no optuna."""
        self._is_waiting = False
        document = replace(
            result(study, self.file, self.state),
            importance=self._importance_of(study, last),
            prior=self.predictions(),
            optuna_lag=self.lag,
        )
        self._write(study_folder.RESULT, document, indented=len(study.trials) < LONG_RESULT)
        return document

    def _importance_of(self, study: StudyState, last: bool) -> Importance:
        count = len(study.trials)
        if last or count >= IMPORTANCE_GROWTH * self._importance[0]:
            self._importance = (count, importance(study, self.file.search_space))
        return self._importance[1]

    def _write_status(self, study: StudyState) -> None:
        self._written = time.monotonic()
        is_held, me = self.state in HELD, self._members.me
        status = StudyStatus(
            study=self.file.name,
            state=self.state,
            phase=self.phase,
            owner=Owner(me.pid, me.start_time, me.host),
            current_run=self._current_run(study) if is_held else None,
            trials_done=len(leaderboard.counted_trials(study)),
            trials_total=leaderboard.trials_wanted(study, self.file),
            running=controllers.running_trials(study, self.file) if is_held else [],
            controllers=controllers.controller_rows(self._members, study) if is_held else [],
            budget=budgets.document(study, self.file, self.state),
            continues=list(study.continues),
            continued_in=study.successor.name if study.successor else None,
            skipped_illegal=sum(trial.skipped_illegal for trial in study.trials),
            optuna_lag=self.lag,
            updated_unix=time.time(),
        )
        write(self._folder / run_folder.STATUS, status.as_dict())

    def _is_ours(self, trial: Trial) -> bool:
        return trial.lease is not None and is_same_member(trial.lease, self._members.me)

    def _current_run(self, study: StudyState) -> str | None:
        """Our own one, else the newest of the others."""
        ours = [trial for trial in study.under_way if self._is_ours(trial)]
        return next((trial.run for trial in reversed(ours or study.under_way)), None)

    def _write(self, name: str, document: object, indented: bool = True) -> None:
        write(self._folder / name, msgspec.to_builtins(document), indented)


def write(path: Path, document: dict[str, Any], indented: bool = True) -> None:
    """Replace a document.

    Raises:
        InputError: the folder is full or read-only.
    """
    try:
        run_folder.write_json(path, document, indented)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}); free space or give another --home"
        raise InputError("home", str(path), remedy) from None
