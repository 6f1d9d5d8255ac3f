"""After the search: the run goes on with what it ended with, and is looked at until its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tuning.execution.executor import OverError
from tuning.execution.live.approach import Approach, live_values
from tuning.execution.live.leader import drifted
from tuning.execution.live.limits import Ledger
from tuning.execution.live.loss_checks import Checking, LossChecks
from tuning.execution.live.ongoing_run import BY_STUDY
from tuning.execution.live.starter import Starter
from tuning.execution.live.windows import LiveWindows
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile
from tuning.storage import commands
from tuning.storage.state import CHECK
from tuning.storage.study_folder import STUDIES, StudyReader

_POLL_SECONDS = 0.1
#: How often a run that nobody turns is looked at.
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """The search goes on: with a check of the leader's loss over so many steps, or as somebody asked for something."""

    check_steps: int = 0


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked for while a run goes on: whether its steps take another time by more than the share ``drift``
    though nobody turned it, and whether a check of its loss is due. None: it is not.
    """

    drift: float | None = None
    checks: LossChecks | None = None


NOTHING = Watched()


def windows_of(
    home: Path, file: StudyFile, attached: str | None = None, baseline_seconds: float | None = None
) -> LiveWindows:
    """The windows of a live study in this home, on a run of its own or the one that it was ``attached`` to;
    ``baseline_seconds`` is what a step of its baseline took, where an earlier search measured that.
    """
    assert file.live is not None
    starter = Starter(home, home / STUDIES / file.name, file.name, file.live, attached)
    baseline = file.search_space.config(file.search_space.baseline[0]) if file.turns_lossy else None
    ledger, approach = Ledger(file.live, baseline_seconds), Approach(baseline, file.guard)
    return LiveWindows(home, starter, ledger, approach, races=file.races is not None)


def rest(
    windows: LiveWindows,
    config: RunConfig,
    name: str,
    should_stop: Callable[[], bool],
    watched: Watched = NOTHING,
) -> RunOutcome | str | Resumed | None:
    """Give the run the values that the search of this ``name`` ended with, and wait for its end; ``should_stop`` ends
    it sooner.

    Returns:
        How it ended; what changed, or that the search goes on: the run does, too, then; None if none was ever begun.
    """
    starter = windows.starter
    run = starter.current
    if run is None:
        return None
    if starter.was_left:  # by an earlier controller: a person may have turned it since
        watched = NOTHING if live_values(config, run.config) else watched
        config = run.config
        starter.died(config)
    else:
        windows.leave(config, name)
    since, looked = run.step + 1, time.monotonic()
    while (outcome := run.outcome()) is None or outcome.ending is not Ending.COMPLETED:
        if should_stop():
            starter.stop()
            return run.outcome()
        try:
            run = starter.run(config)
        except OverError:
            return run.outcome()
        if time.monotonic() - looked > LOOK_SECONDS:
            if live_values(run.config, config):  # a person's choice is no drift, and outlives a death
                config, watched = run.config, NOTHING
                starter.died(config)
            if windows.asked:
                return Resumed()
            if watched.checks and (steps := watched.checks.due(run.step + 1, run.config.train.steps)):
                return Resumed(steps)
            run.refresh()
            if watched.drift is not None and (words := drifted(run.step_seconds(since), watched.drift)):
                return words
            looked = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return outcome


def ended_with(windows: LiveWindows, file: StudyFile, result: StudyResult) -> RunConfig:
    """What a search gives its run: the best, or what the run began with if somebody wants that back."""
    if reverted := StudyReader(windows.starter.study).view().journal.is_reverted:
        windows.release()
    found = result.best.config if result.best and not reverted else file.search_space.baseline[0]
    return file.search_space.config(found)


def to_the_end(
    windows: LiveWindows,
    file: StudyFile,
    search: Callable[[], StudyResult],
    looking: Callable[[], AbstractContextManager[Callable[[], bool]]],
) -> tuple[StudyResult, str]:
    """``search``, and let the run go on with what was found until its end. Where a check of its loss is due, or
    somebody asks for something, the search goes on, and another one may lead then. Who is ``looking`` meanwhile says
    whether to stop.

    Returns:
        What the search came to, and what changed since, empty where the run is over: another search may follow.
    """
    assert file.live is not None
    checking, starter = Checking(file), windows.starter
    while True:
        result = search()
        best = ended_with(windows, file, result)
        if result.state == "interrupted":
            starter.stop()
            return result, ""
        step = starter.current.step + 1 if starter.current is not None else 0
        watched = Watched(file.live.look_again, checking.of(result, best.flat(), step))
        with looking() as should_stop:
            ended = rest(windows, best, file.name, should_stop, watched)
        if not isinstance(ended, Resumed):
            return result, ended if isinstance(ended, str) else ""
        if ended.check_steps and starter.current is not None:
            checking.ask(starter.current.step, ended.check_steps)
            commands.send(starter.study, CHECK, {"steps": ended.check_steps}, BY_STUDY + file.name)
