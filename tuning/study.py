"""A study from its file to its result: propose, measure, journal, tell, confirm; and go on after a crash.

``TrialRunner`` is one trial from its proposal to what is told of it: its run is watched, raced, and stopped on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from engine.config.errors import InputError
from engine.run.outcome import Ending, StopAnswer
from tuning.analysis import leaderboard
from tuning.analysis.early_stop import Race, race_of
from tuning.controllers import coordination, open_study
from tuning.controllers.commands import POLL_SECONDS, Control
from tuning.controllers.open_study import ResumableStudy, StudyStorage
from tuning.controllers.status import StatusWriter, Update
from tuning.execution import executor
from tuning.execution.device_slices import ConcurrentTrials
from tuning.execution.executor import CostlyBaselineError, EndOfSearchError, EndOfTrialsError, Execute
from tuning.execution.processor_clock import ProcessorClock
from tuning.execution.signals import Interruption
from tuning.report.study_result import StudyResult
from tuning.search import policy
from tuning.search.policy import Step
from tuning.search.prediction_prior import PriorMaker
from tuning.space import rounds
from tuning.space.encoding import Encoding
from tuning.spec.study_file import StudyFile
from tuning.storage.journal import TURN, FileLock, Journal, UnreachableError
from tuning.storage.state import CHECK, Trial

if TYPE_CHECKING:
    from tuning.sampling.optuna_study import Draw


class TrialRunner:
    """Runs one trial of a study in this process."""

    def __init__(
        self,
        trial: Trial,
        file: StudyFile,
        journal: Journal,
        control: Control,
        status_writer: StatusWriter,
        interruption: Interruption,
    ) -> None:
        self._trial, self._file, self._journal = trial, file, journal
        self._control, self._status_writer, self._interruption = control, status_writer, interruption
        self._race: Race = race_of(trial, journal.state, file)
        self._clock, self._beside = ProcessorClock(), ConcurrentTrials(trial.number)

    def run(self, execute: Execute) -> dict[str, Any]:
        """What to tell of it.

        Raises:
            InputError: it could not begin, through a mistake that the user can mend.
        """
        trial = self._trial
        labels = {"study": self._file.name, "trial": str(trial.number), "purpose": self._purpose}
        space = self._file.search_space
        config = rounds.lengthen_config(space.config(trial.config))
        resolved = {key: config.flat()[key] for key in space.automatic_keys(trial.config)}
        config = rounds.window(config, trial.window) if trial.window else config
        outcome, summary = execute(config, labels, self._should_stop, self._began)
        if self._interruption.seen and outcome.ending.facts.by_interrupt:
            outcome = replace(outcome, ending=Ending.STOPPED)
        record = executor.trial_record(trial, outcome, summary, self._journal.state, self._file)
        record["conditions"] |= self._clock.readings() | self._beside.readings()
        record["resolved"] = resolved | executor.planned_actions(summary)
        if outcome.ending is Ending.STOPPED:
            record["by_command"] = self._control.killed.get(trial.number)
            record["reason"] = self._why_stopped() or outcome.reason
        return record

    @property
    def _purpose(self) -> str:
        """What the trial is for: another attempt at the baseline is it, and one at a check is one."""
        first = leaderboard.root(self._journal.state, self._trial).source
        return first if first in ("baseline", CHECK) else self._trial.source

    def _should_stop(self) -> StopAnswer:
        control, status_writer = self._control, self._status_writer
        control.poll()
        self._clock.look()
        self._beside.look(self._journal.state.under_way)
        status_writer.heartbeat(self._journal.state)
        if control.stopping and status_writer.state != "stopping":
            status_writer.state = "stopping"
            status_writer.show(self._journal.state)
        wanted = bool(self._interruption.seen) or control.stopping or self._trial.number in control.killed
        return wanted or self._race.answer() or False

    def _began(self, run: Path) -> None:
        self._journal.append("started", number=self._trial.number, run=run.name)
        self._status_writer.show(self._journal.state)
        self._race.begin(run)

    def _why_stopped(self) -> str:
        if self._trial.number in self._control.killed:
            return "killed by command"
        if self._control.stopping:
            return "the study was stopped by command"
        signal_name = self._interruption.seen
        return f"the study was interrupted ({signal_name})" if signal_name else ""


#: How a study ends whose space grew: another one goes on.
CONTINUED: Final = "continued"
#: What a controller waits for whose journal is kept elsewhere.
AWAY = "waiting for the database"
#: A controller that waits for others looks again so often, even if the journal does not change.
LOOK_SECONDS = 1.0
#: What a controller does that measures nothing now.
Otherwise = Literal["ended", "continued", "paused", "wait", "again"]


def run_study(
    file: StudyFile,
    folder: Path,
    execute: Execute,
    on_update: Callable[[Update], None] | None = None,
    make_prior: PriorMaker | None = None,
    join: bool = False,
    storage: str | None = None,
) -> StudyResult:
    """Run a study, or go on with it; its result, whose ``state`` is ended or interrupted. ``make_prior`` makes
    predictions of a study's space, if there are some. To ``join``: beside other controllers, if there are some.
    ``storage`` is the address of a PostgreSQL database that keeps its journal, for controllers on several hosts.

    Raises:
        InputError: another study has this name, a process runs it already, its folder cannot be written, or the
            database does not answer.
    """
    opening = open_study.begin(folder, file, storage)
    heard: int | None = None
    with Interruption() as interruption:  # whoever asks while a study goes over to another one is heard there
        run_once = partial(_run, execute, on_update, make_prior, interruption, storage=storage)
        while True:
            document, heard = run_once(opening, join=join, heard=heard)
            if document.state != CONTINUED:
                return document
            opening = open_study.follow(opening, storage)
            join = True  # they all go on with the same study


def _run(
    execute: Execute,
    on_update: Callable[[Update], None] | None,
    make_prior: PriorMaker | None,
    interruption: Interruption,
    opening: ResumableStudy,
    *,
    join: bool,
    heard: int | None,
    storage: str | None,
) -> tuple[StudyResult, int]:
    """The result of a study, and how many answers in its journal are from before it was started: a study that goes on
    under another name may be paused.
    """
    stored, folder = open_study.keep(opening, join, heard, storage), opening.folder
    status_writer = StatusWriter(folder, stored.file, stored.members, on_update)
    status_writer.state = "interrupted"
    try:
        study = Study(stored, folder, execute, status_writer, make_prior)
        try:
            study.run(interruption)
        finally:
            study.close()
    finally:
        ended = status_writer.state
        with FileLock(folder / TURN):  # who leaves last says how the study ended
            status_writer.state = "running" if stored.close() else ended
            status_writer.show(stored.journal.state)
            document = status_writer.write_result(stored.journal.state, last=True)
    return replace(document, state=ended), stored.heard


class Study:
    """The loop over the trials of one study, in one of its controllers."""

    def __init__(
        self,
        storage: StudyStorage,
        folder: Path,
        execute: Execute,
        status_writer: StatusWriter,
        make_prior: PriorMaker | None = None,
    ) -> None:
        from tuning.controllers.optuna_exporter import OptunaExporter
        from tuning.search.proposer import Proposer

        file, self._journal, self._members = storage.file, storage.journal, storage.members
        self._folder, self._execute, self._status_writer = folder, execute, status_writer
        self.control = Control(folder, file, storage.journal, storage.heard)
        encoding = Encoding(file.search_space)
        prior = make_prior(file.search_space) if make_prior else None
        self._proposer = Proposer(
            file, storage.journal, encoding, prior, len(storage.members.other_members())
        )
        status_writer.predictions = self._proposer.predictions
        self._exporter = OptunaExporter(folder, encoding, storage, status_writer, self.control)

    @property
    def _file(self) -> StudyFile:
        return self._proposer.file

    def run(self, interruption: Interruption) -> None:
        """Measure until nothing is left to do, or until somebody wants it to end."""
        try:
            ended = self._measure_all(interruption)
            self._exporter.complete(ended == "ended", interruption)
            self._status_writer.state = ended
            self._status_writer.show_others(self._journal.state)
        except BaseException:
            self._status_writer.state = "interrupted"
            raise

    def close(self) -> None:
        """Let go of Optuna's file."""
        self._exporter.close()

    def _measure_all(self, interruption: Interruption) -> str:
        self._status_writer.state = "running"
        self._catch_up()
        while not interruption.seen:
            try:
                self.control.poll()
                reason = self._next()
                if isinstance(reason, Trial):
                    self._measure(reason, interruption)
                elif reason in ("ended", CONTINUED):
                    return reason
                elif reason != "again":
                    self._idle(reason, interruption)
            except UnreachableError as problem:
                self._wait_for_journal(problem, interruption)
            except EndOfSearchError as problem:
                self._journal.append("note", text=f"the search ended: {problem}", enough=str(problem))
            except EndOfTrialsError as problem:
                if isinstance(problem, CostlyBaselineError) and not self._journal.state.spared:
                    self._journal.append("note", text=str(problem), spared=str(problem))
                    continue
                self._journal.append("note", text=f"the search ended: {problem}", over=str(problem))
                return "ended"
        return "interrupted"

    def _next(self) -> Trial | Otherwise:
        """The trial that this controller measures now, or what it does instead."""
        with self._journal.turn():
            if self.control.stopping:
                return "ended"
            self._settle()
            if self._journal.state.successor is not None:
                return "wait" if self._journal.state.under_way else CONTINUED
            if self.control.paused:
                return "paused"
            self._proposer.tell_new()
            self._status_writer.file = self._file
            proposer = self._proposer
            step = policy.next_step(
                self._journal.state, self._file, proposer.is_exhausted, proposer.predicted_failures
            )
            step = coordination.step_or_wait(step, self._journal.state, self._members.has)
            if step.phase == "wait":
                return "wait"
            self._status_writer.state = "running"
            self._status_writer.phase = step.phase
            return "ended" if step.phase == "done" else self._propose_trial(step)

    def _catch_up(self) -> None:
        """Settle what an owner that died left open, and tell Optuna what the journal says."""
        with self._journal.turn():
            self._settle()
            self._proposer.tell_inherited()
            self._proposer.tell_new()
            state = self._journal.state
            for words in state.damage:
                if words not in state.notes:
                    self._journal.append("note", text=words)
            note = self._exporter.follow()
        self._status_writer.skip_ended_trials(state)
        self._status_writer.show(state, note="; ".join(filter(None, (note, self._exporter.slow))))

    def _settle(self) -> None:
        """End the trials of controllers that are gone; ours are over, too, for we measure nothing now."""
        for trial in self._journal.state.under_way:
            if self._members.may_be_gone(trial.lease):
                home = self._folder.parent.parent
                record = executor.orphan_record(trial, home, self._journal.state, self._file)
                self._journal.append("tell", number=trial.number, **record)

    def _idle(self, reason: str, interruption: Interruption) -> None:
        """Paused, or waiting for other controllers: until the journal changes, or it is time to look again."""
        state, phase = "running", coordination.phase(self._journal.state)
        if reason == "paused":
            state, phase = "paused", self._status_writer.phase
        if (self._status_writer.state, self._status_writer.phase) != (state, phase):
            self._status_writer.state, self._status_writer.phase = state, phase
            self._status_writer.show(self._journal.state)
        index, deadline = self._journal.state, time.monotonic() + LOOK_SECONDS
        version = index.version
        while index.version == version and time.monotonic() < deadline and not interruption.seen:
            self._status_writer.heartbeat(index)
            time.sleep(POLL_SECONDS)
            self.control.poll()

    def _wait_for_journal(self, problem: UnreachableError, interruption: Interruption) -> None:
        """It is kept elsewhere, and cannot be reached now."""
        if self._status_writer.phase != AWAY:
            self._status_writer.phase = AWAY
            self._status_writer.show(self._journal.state, note=f"{problem}; it is asked again")
        deadline = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < deadline and not interruption.seen:
            time.sleep(POLL_SECONDS)

    def _propose_trial(self, step: Step) -> Trial | Otherwise:
        """The trial of a step, journaled with its lease; draws its point where it has none."""
        params: dict[str, Any] = {}
        skipped, point = 0, step.point
        if point is None:
            draw = self._draw_point()
            if draw is None:
                return "again"
            point, params, skipped = draw.point, draw.params, draw.skipped_illegal
            turned = {"turned": draw.group} if draw.group else {}
            why, details = draw.why or step.why, step.details | turned
            step = replace(step, source=draw.source, why=why, details=details)
        number = self._journal.state.next_number
        proposal = {
            "number": number,
            "config": point,
            "params": params,
            "source": step.source,
            "why": step.why,
        }
        facts = {"skipped_illegal": skipped, "attempt": 0} | step.details
        self._journal.append("proposal", **proposal, **facts)
        self._journal.append("lease", number=number, **asdict(open_study.lease()))
        return self._trial(number)

    def _draw_point(self) -> Draw | None:
        """What the sampler wants next; what was noted meanwhile is told."""
        before = len(self._journal.state.notes)
        draw = self._proposer.draw()
        for note in self._journal.state.notes[before:]:
            self._status_writer.show(self._journal.state, note=note)
        return draw

    def _measure(self, trial: Trial, interruption: Interruption) -> None:
        self._status_writer.state = "running"
        self._status_writer.show_others(self._journal.state)
        self._status_writer.show(self._journal.state, trial)
        started = time.monotonic()
        runner = TrialRunner(
            trial, self._file, self._journal, self.control, self._status_writer, interruption
        )
        try:
            record = runner.run(self._execute)
        except KeyboardInterrupt:
            interruption.seen = interruption.seen or "SIGINT"
            run = self._trial(trial.number).run
            record = {"run": run, "outcome": Ending.STOPPED.value, "reason": "interrupted"}
        except (InputError, EndOfTrialsError):
            self._journal.append("withdrawn", number=trial.number)
            raise
        self._journal.append("tell", number=trial.number, seconds=time.monotonic() - started, **record)
        self._search_on(self._trial(trial.number))
        self.control.poll(at_once=True)  # what the trial itself asked for holds for the next one
        self._follow_up(trial.number)

    def _search_on(self, check: Trial) -> None:
        """Once a check ruled out who led: what was enough of a search was so beside that one."""
        state = self._journal.state
        if check.checks_loss and state.enough and leaderboard.is_ruled_out(state, check, self._file):
            words = f"trial {check.confirms} is ruled out by its check: the search goes on"
            self._journal.append("note", text=words, enough="")

    def _follow_up(self, number: int) -> None:
        with self._journal.turn():
            self._proposer.tell_new()
            note = self._exporter.follow()
        self._status_writer.show(self._journal.state, self._trial(number), note)
        self._status_writer.refresh_result(self._journal.state)

    def _trial(self, number: int) -> Trial:
        trial = self._journal.state.trial(number)
        assert trial is not None
        return trial
