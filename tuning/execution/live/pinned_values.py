"""What somebody set by hand on the run of a study: it is not searched any more, until it is unpinned."""

from __future__ import annotations

from pathlib import Path

from engine.config.run_config import RunConfig
from engine.config.sections import KnobValues
from tuning.execution.executor import EndOfTrialsError
from tuning.storage import commands
from tuning.storage.journal import JournalReader
from tuning.storage.state import StudyState
from tuning.storage.study_folder import JOURNAL

#: Who asks the study to pin it.
BY = "set by hand on the run"


class PinnedValues:
    """Follows from the study's journal, so that it outlives a controller."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._journal = folder, JournalReader(folder / JOURNAL)
        self._asked: dict[str, KnobValues] = {}
        self._released = False

    @property
    def values(self) -> KnobValues:
        """By key, what holds now."""
        if self._released:
            return {}
        state = self._journal.look()
        requested = [values for id, values in self._asked.items() if id not in state.answers]
        return {key: value for values in (pins(state), *requested) for key, value in values.items()}

    @property
    def values_not_searched(self) -> KnobValues:
        """What holds of keys that the study does not search: its trials run with them."""
        searched = self._searched_keys()
        return {key: value for key, value in self.values.items() if key not in searched}

    @property
    def undeclared_values(self) -> KnobValues:
        """What holds of keys that the study searches, but not this value: it could not pin them."""
        refused_values, searched = KnobValues(), self._searched_keys()
        for answer in self._journal.look().answers.values():
            if answer.command == "pin" and answer.by == BY:
                refused_values |= {} if answer.accepted else answer.arguments
        return {
            key: value
            for key, value in self.values.items()
            if key in searched and refused_values.get(key) == value
        }

    def _searched_keys(self) -> set[str]:
        return {key for trial in self._journal.look().trials for key in trial.config}

    def overridden_keys(self, config: RunConfig) -> str:
        """Keys that were set by hand to another value than this configuration has."""
        flat = config.flat()
        return ", ".join(key for key, value in self.values.items() if flat.get(key) != value)

    def check_leader(self, config: RunConfig) -> None:
        """EndOfTrialsError where a leader has another value than somebody gave the run by hand."""
        if others := self.overridden_keys(config):
            raise EndOfTrialsError(
                f"{others} was set by hand; leaders with other values are not measured again"
            )

    def check_undeclared(self) -> None:
        """EndOfTrialsError where somebody gave a searched key a value that the study does not have; no trial can."""
        if values := self.undeclared_values:
            words = ", ".join(f"{key}={value}" for key, value in values.items())
            raise EndOfTrialsError(f"{words} was set by hand, which the study does not search")

    @property
    def has_pending_commands(self) -> bool:
        """Whether somebody asked the study for something, and nobody answered."""
        state = self._journal.look()
        return state.successor is None and bool(commands.pending_commands(self._folder, state.answers))

    def hold(self, values: KnobValues) -> None:
        """Ask the study to pin these, each by itself: one that it does not search is no reason to refuse the rest."""
        self._released = False
        for key, value in values.items():
            self._asked[commands.send(self._folder, "pin", {key: value}, BY)] = {key: value}

    def release(self) -> None:
        """Nothing need stay: somebody wants the run to have what it began with."""
        self._released = True


def pins(state: StudyState) -> KnobValues:
    """What a journal says of it. A value that the study could not pin, as it does not search it, stays, too."""
    values: KnobValues = {}
    for answer in state.answers.values():
        if answer.command == "pin" and answer.by == BY:
            values |= answer.arguments
        elif answer.command in ("pin", "unpin", "narrow", "widen") and answer.accepted:
            values = {key: value for key, value in values.items() if key not in answer.arguments}
    return values
