"""One trial from its proposal to what is told of it: its run is watched, raced, and stopped if somebody wants that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.run.outcome import Ending, StopAnswer
from tuning import telling
from tuning.board import Board
from tuning.control import Control
from tuning.execute import Execute
from tuning.frequency import ProcessorClock
from tuning.interruption import Interruption
from tuning.journal import Journal
from tuning.race import Race, race_of
from tuning.side_by_side import Beside
from tuning.state import Trial
from tuning.studyfile import StudyFile

#: A signal to all processes of a group ends ranks, too, and then says nothing about them.
_OF_A_GROUP = (Ending.CRASHED, Ending.COMM_ERROR, Ending.LOST)


class Measuring:
    """Runs one trial of a study in this process."""

    def __init__(
        self,
        trial: Trial,
        file: StudyFile,
        journal: Journal,
        control: Control,
        board: Board,
        interruption: Interruption,
    ) -> None:
        self._trial, self._file, self._journal = trial, file, journal
        self._control, self._board, self._interruption = control, board, interruption
        self._race: Race = race_of(trial, journal.state, file)
        self._clock, self._beside = ProcessorClock(), Beside(trial.number)

    def run(self, execute: Execute) -> dict[str, Any]:
        """What to tell of it.

        Raises:
            InputError: it could not begin, through a mistake that the user can mend.
        """
        trial = self._trial
        labels = {"study": self._file.name, "trial": str(trial.number), "purpose": trial.source}
        config = self._file.search_space.config(trial.config)
        outcome, summary = execute(config, labels, self._should_stop, self._began)
        if self._interruption.seen and outcome.ending in _OF_A_GROUP:
            outcome = replace(outcome, ending=Ending.STOPPED)
        told = telling.told(trial, outcome, summary, self._journal.state, self._file)
        told["conditions"] |= self._clock.known() | self._beside.known()
        if outcome.ending is Ending.STOPPED:
            told["by_command"] = self._control.killed.get(trial.number)
            told["reason"] = self._why_stopped() or outcome.reason
        return told

    def _should_stop(self) -> StopAnswer:
        control, board = self._control, self._board
        control.poll()
        self._clock.look()
        self._beside.look(self._journal.state.under_way)
        board.heartbeat(self._journal.state)
        if control.stopping and board.state != "stopping":
            board.state = "stopping"
            board.show(self._journal.state)
        wanted = bool(self._interruption.seen) or control.stopping or self._trial.number in control.killed
        return wanted or self._race.answer() or False

    def _began(self, run: Path) -> None:
        self._journal.append("started", number=self._trial.number, run=run.name)
        self._board.show(self._journal.state)
        self._race.began(run)

    def _why_stopped(self) -> str:
        if self._trial.number in self._control.killed:
            return "killed by command"
        if self._control.stopping:
            return "the study was stopped by command"
        seen = self._interruption.seen
        return f"the study was interrupted ({seen})" if seen else ""
