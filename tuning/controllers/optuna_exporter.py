"""Optuna's database beside a study that runs: it follows each trial, and catches up at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tuning.controllers.commands import Control
from tuning.controllers.open_study import StudyStorage
from tuning.controllers.status import StatusWriter
from tuning.execution.signals import Interruption
from tuning.sampling.optuna_export import Mirror, drain
from tuning.space.encoding import Encoding
from tuning.storage.journal import UnreachableError
from tuning.storage.state import StudyState

#: What a study that is over does until Optuna's tools see all of it.
CATCHING_UP = "adding trials to Optuna's database"


class OptunaExporter:
    """Lets the database follow in this controller's turns, and shows how far it is."""

    def __init__(
        self,
        folder: Path,
        encoding: Encoding,
        storage: StudyStorage,
        status_writer: StatusWriter,
        control: Control,
    ) -> None:
        aims = storage.file.aims if storage.file.objectives else ()
        self._mirror = Mirror(folder, encoding, aims, storage.place)
        self._journal, self._members = storage.journal, storage.members
        self._status_writer, self._control = status_writer, control

    @property
    def slow(self) -> str:
        """What it lacks, in words, if it takes more than a moment to add that."""
        return self._mirror.slow

    def follow(self) -> str:
        """Take over what ended; what was wrong with it, if anything. Inside a turn."""
        return self._note(self._mirror.follow)

    def complete(self, ended: bool, interruption: Interruption) -> None:
        """Read all of it as others will; once the study has ``ended`` let it catch up, unless somebody wants that to
        be over, too.
        """
        with suppress(UnreachableError):
            with self._journal.turn():
                self._note(self._mirror.check)
            if ended:
                drain(self._mirror, self._lot, self._catching_up, lambda: self._is_over(interruption))

    def close(self) -> None:
        """Let go of it."""
        self._mirror.close()

    def _note(self, bring_up: Callable[[StudyState], str]) -> str:
        problem = bring_up(self._journal.state)
        self._status_writer.lag = self._mirror.lag
        if problem:
            self._journal.append("note", text=problem)
        return problem

    def _is_over(self, interruption: Interruption) -> bool:
        """Where nobody watches, a controller that goes on cares for it."""
        if interruption.seen or self._control.stopping:
            return True
        return not self._status_writer.is_watched and bool(self._members.other_members())

    def _lot(self) -> str:
        self._status_writer.heartbeat(self._journal.state)
        self._control.poll()
        with self._journal.turn():
            return self.follow()

    def _catching_up(self, words: str) -> None:
        self._status_writer.state, self._status_writer.phase = "running", CATCHING_UP
        self._status_writer.show(self._journal.state, note=words)
