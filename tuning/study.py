"""A study from its file to its result: propose, measure, journal, tell, confirm; and go on after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.outcome import Ending, RunOutcome, StopAnswer
from profilers.summary import RunSummary
from tuning import agenda, objective, opening, owner, ranking, recovered, surroundings
from tuning.agenda import Step
from tuning.board import Board, Update
from tuning.control import POLL_SECONDS, Control
from tuning.encoding import Encoding
from tuning.execute import Execute
from tuning.foresight import Foresee
from tuning.frequency import ProcessorClock
from tuning.inheritance import inherit
from tuning.interruption import Interruption
from tuning.journal import Journal, load
from tuning.points import Point
from tuning.race import race_of
from tuning.readers import JOURNAL
from tuning.state import Trial
from tuning.studyfile import StudyFile
from tuning.succession import follow

#: How a study ends whose space grew: another one goes on.
CONTINUED = "continued"


def run_study(
    file: StudyFile,
    folder: Path,
    execute: Execute,
    on_update: Callable[[Update], None] | None = None,
    foresee: Foresee | None = None,
) -> dict[str, Any]:
    """Run a study, or go on with it; the document of its result. ``state`` in it: ended or interrupted. ``foresee``
    makes predictions of a study's space, if there are some.

    Raises:
        InputError: another study has this name, a process runs it already, or its folder cannot be written.
    """
    file = opening.as_before(folder, file)
    opening.check_same(load(folder / JOURNAL).file, file)
    folder, file = follow(folder, file)
    paused = False
    while True:
        document, paused = _run(file, folder, execute, on_update, foresee, paused)
        if document["state"] != CONTINUED:
            return document
        folder, file = follow(folder, file)


def _run(
    file: StudyFile,
    folder: Path,
    execute: Execute,
    on_update: Callable[[Update], None] | None,
    foresee: Foresee | None,
    paused: bool,
) -> tuple[dict[str, Any], bool]:
    """The document of a study, and whether it ended while it was paused, as one may whose space was widened."""
    opening.prepare(folder, file)
    board = Board(folder, file, owner.take(folder), on_update)
    board.state = "interrupted"
    journal = opening.open_journal(folder, file)
    try:
        inherit(folder, file, journal)
        study = Study(file, folder, journal, execute, board, foresee)
        study.control.paused = paused
        try:
            with Interruption() as interruption:
                study.run(interruption)
        finally:
            study.close()
    finally:
        journal.close()
        board.show(journal.state)
    return board.write_result(journal.state, last=True), study.control.paused


class Study:
    """The loop over the trials of one study."""

    def __init__(
        self,
        file: StudyFile,
        folder: Path,
        journal: Journal,
        execute: Execute,
        board: Board,
        foresee: Foresee | None = None,
    ) -> None:
        from tuning.mirror import Mirror
        from tuning.proposing import Proposer

        self._journal, self._execute, self._board = journal, execute, board
        self._folder = folder
        self.control = Control(folder, file, journal)
        encoding = Encoding(file.search_space)
        self._proposer = Proposer(file, journal, encoding, foresee(file.search_space) if foresee else None)
        board.predictions = self._proposer.predictions
        self._mirror = Mirror(folder, encoding, file.aims if file.objectives else ())

    @property
    def _file(self) -> StudyFile:
        return self._proposer.file

    def run(self, interruption: Interruption) -> None:
        """Measure until nothing is left to do, or until somebody wants it to end."""
        try:
            self._board.state = self._measure_all(interruption)
            self._note(self._mirror.check(self._journal.state))
        except BaseException:
            self._board.state = "interrupted"
            raise

    def _measure_all(self, interruption: Interruption) -> str:
        self._board.state = "running"
        self._catch_up()
        while not interruption.seen:
            self.control.poll()
            if self.control.stopping:
                return "ended"
            if self._journal.state.successor is not None:
                return CONTINUED
            if self._wait_while_paused():
                continue
            self._board.file = self._file
            step = agenda.next_step(self._journal.state, self._file, self._proposer.exhausted)
            if step.phase == "done":
                self._board.phase = "done"
                return "ended"
            self._take(step, interruption)
        return "interrupted"

    def close(self) -> None:
        """Let go of Optuna's file."""
        self._mirror.close()

    def _catch_up(self) -> None:
        """Settle what an owner that died left open, and tell Optuna what the journal says."""
        for trial in [trial for trial in self._journal.state.trials if trial.outcome is None]:
            self._journal.append("tell", number=trial.number, **self._left_by(trial))
        state = self._journal.state
        self._proposer.tell_all()
        for words in state.damage:
            if words not in state.notes:
                self._journal.append("note", text=words)
        self._board.show(state, note=self._follow())

    def _left_by(self, trial: Trial) -> dict[str, Any]:
        """What became of a trial whose owner died: how its run ended if it did, else that it is lost."""
        found = recovered.ended_run(self._folder.parent.parent, trial)
        if found is None:
            reason = "the process that ran the study died during this trial"
            return {"run": trial.run, "outcome": Ending.LOST.value, "reason": reason}
        outcome, summary, ended_unix = found
        seconds = max(0.0, ended_unix - trial.proposed_unix)
        return self._told(trial, outcome, summary) | {"seconds": seconds}

    def _follow(self) -> str:
        """Let Optuna's file follow the journal; what was wrong with it, if anything."""
        return self._note(self._mirror.follow(self._journal.state))

    def _note(self, text: str) -> str:
        if text:
            self._journal.append("note", text=text)
        return text

    def _wait_while_paused(self) -> bool:
        state = "paused" if self.control.paused else "running"
        if self._board.state != state:
            self._board.state = state
            self._board.show(self._journal.state)
        if self.control.paused:
            self._board.heartbeat()
            time.sleep(POLL_SECONDS)
        return self.control.paused

    def _take(self, step: Step, interruption: Interruption) -> None:
        params: dict[str, Any] = {}
        skipped, point = 0, step.point
        if point is None:
            draw = self._proposer.draw()
            if draw is None:
                return
            point, params, skipped = draw.point, draw.params, draw.skipped_illegal
            step = replace(step, source=draw.source, why=draw.why or step.why)
        self._board.phase = step.phase
        trial = self._propose(step, point, params, skipped)
        self._measure(trial, interruption)

    def _propose(self, step: Step, point: Point, params: dict[str, Any], skipped: int) -> Trial:
        number = self._journal.state.next_number
        self._journal.append(
            "proposal",
            number=number,
            config=point,
            params=params,
            source=step.source,
            why=step.why,
            skipped_illegal=skipped,
            **({"attempt": 0} | step.details),
        )
        self._journal.append("lease", number=number, **opening.lease())
        return self._trial(number)

    def _measure(self, trial: Trial, interruption: Interruption) -> None:
        self._board.show(self._journal.state, trial)
        started = time.monotonic()
        try:
            told = self._run(trial, interruption)
        except KeyboardInterrupt:
            interruption.seen = interruption.seen or "SIGINT"
            told = {
                "run": self._trial(trial.number).run,
                "outcome": Ending.STOPPED.value,
                "reason": "interrupted",
            }
        except InputError:
            self._journal.append("withdrawn", number=trial.number)
            raise
        self._journal.append("tell", number=trial.number, seconds=time.monotonic() - started, **told)
        ended = self._trial(trial.number)
        self._proposer.tell(ended)
        self._board.show(self._journal.state, ended, self._follow())
        self._board.result_changed(self._journal.state)

    def _run(self, trial: Trial, interruption: Interruption) -> dict[str, Any]:
        labels = {"study": self._file.name, "trial": str(trial.number), "purpose": trial.source}
        config = self._file.search_space.config(trial.config)
        number, race = trial.number, race_of(trial, self._journal.state, self._file)

        clock = ProcessorClock()

        def should_stop() -> StopAnswer:
            self.control.poll()
            clock.look()
            self._board.heartbeat()
            if self.control.stopping and self._board.state != "stopping":
                self._board.state = "stopping"
                self._board.show(self._journal.state, run=self._trial(number).run)
            wanted = bool(interruption.seen) or self.control.stopping or number in self.control.killed
            return wanted or race.answer() or False

        def on_start(run: Path) -> None:
            self._journal.append("started", number=number, run=run.name)
            self._board.show(self._journal.state, run=run.name)
            race.began(run)

        outcome, summary = self._execute(config, labels, should_stop, on_start)
        told = self._told(trial, outcome, summary)
        told["conditions"] |= clock.known()
        if outcome.ending is Ending.STOPPED:
            told["by_command"] = self.control.killed.get(number)
            told["reason"] = self._why_stopped(number, interruption) or outcome.reason
        return told

    def _told(self, trial: Trial, outcome: RunOutcome, summary: RunSummary) -> dict[str, Any]:
        outcome = surroundings.as_asked(outcome, summary)
        told = objective.measured(outcome, summary, self._file.aim)
        judged = self._judged(trial, summary)
        told["constraints"] = objective.constraints(outcome, trial.attempt > 0, judged)
        if outcome.good and judged is not None and judged.state != "satisfied":
            told["reason"] = outcome.reason or judged.reason
        told = objective.with_measures(told, outcome, summary, self._file)
        return told

    def _judged(self, trial: Trial, summary: RunSummary) -> objective.Judged | None:
        """What is asked of its loss; None of an exact one, unless a loss is to be reached."""
        if self._file.target_loss is not None:
            return objective.reached(summary, self._file.target_loss)
        if not objective.is_lossy(self._file.config.flat() | trial.config):
            return None
        stands = ranking.standing(self._journal.state, self._file)
        loss = stands.baseline.validation_loss if stands.baseline else None
        return objective.judge(summary.validation_loss, loss, len(summary.losses), self._file.guard)

    def _why_stopped(self, number: int, interruption: Interruption) -> str:
        if number in self.control.killed:
            return "killed by command"
        if self.control.stopping:
            return "the study was stopped by command"
        return f"the study was interrupted ({interruption.seen})" if interruption.seen else ""

    def _trial(self, number: int) -> Trial:
        found = self._journal.state.trial(number)
        assert found is not None
        return found
