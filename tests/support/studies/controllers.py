"""Controllers of one study as processes of their own, on a made-up machine."""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.studies.fake import Machine, run_study, study
from tuning.space.points import point_key
from tuning.storage import journal
from tuning.storage.state import StudyState

#: A busy machine takes a while.
PATIENCE_SECONDS = 50.0
#: Processes are forked from one that has loaded everything, which takes a controller seconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        __name__,
        "tuning.controllers.optuna_exporter",
        "tuning.search.proposer",
        "tuning.sensitivity.importance",
        "optuna.storages._rdb.storage",
    ]
)


def _control(says: Connection, given: dict[str, Any], folder: Path, seconds: float, more: Any) -> None:
    machine = Machine(run_seconds=seconds, during=lambda number, run: says.send(("begun", str(run))))
    try:
        found = run_study(study(**given), folder, machine, **more)
    except BaseException:
        says.send(("failed", traceback.format_exc()))
        raise
    says.send(("done", (found["state"], found["trials_done"], len(machine.configs))))


class Controller:
    """One process that runs a study with others."""

    #: Those that were started and not ended by their test yet.
    living: ClassVar[list[Controller]] = []

    def __init__(self, folder: Path, given: dict[str, Any], run_seconds: float = 0.05, **more: Any) -> None:
        self._hears, says = _PROCESSES.Pipe(duplex=False)
        more = {"join": "storage" not in more} | more
        self.process = _PROCESSES.Process(target=_control, args=(says, given, folder, run_seconds, more))
        self.process.start()
        self.living.append(self)
        says.close()

    def begun(self) -> str:
        """The run that begins next."""
        assert self._hears.poll(PATIENCE_SECONDS)
        kind, said = self._hears.recv()
        assert kind == "begun", said
        return str(said)

    def kill(self) -> None:
        """As the kernel does, without a word."""
        self.process.kill()
        self._leave()

    def end(self) -> tuple[str, int, int]:
        """State, trials of the study that are done, and executions of this controller."""
        kind, said = "begun", None
        while kind == "begun":
            assert self._hears.poll(PATIENCE_SECONDS)
            kind, said = self._hears.recv()
        self._leave()
        assert kind == "done" and isinstance(said, tuple), said
        return said

    def _leave(self) -> None:
        self.process.join()
        self._hears.close()
        self.living.remove(self)


@pytest.fixture
def no_controller_stays() -> Iterator[None]:
    """Whatever becomes of a test, none of its controllers outlives it."""
    yield
    for controller in list(Controller.living):
        controller.kill()


def check(folder: Path, trials: int, lost: int = 0) -> StudyState:
    """The study's journal holds so many trials: none twice, none left out, none under way."""
    state = journal.load(folder / "journal.jsonl")
    assert state.damage == ()
    assert state.under_way == ()
    assert [trial.number for trial in state.trials] == list(range(len(state.trials)))
    searched = [trial for trial in state.trials if trial.confirms is None]
    outcomes = Counter(trial.outcome for trial in searched)
    assert outcomes == {"completed": trials} | ({"lost": lost} if lost else {})
    good = [trial for trial in searched if trial.outcome == "completed"]
    assert len({point_key(trial.config) for trial in good}) == trials
    assert [trial.source for trial in searched].count("baseline") == 1
    return state
