"""What a study runs its trials with: real ranks, a model of a cluster, or a recorded table.

:func:`trial_record` and :func:`orphan_record` are what the journal keeps of how a trial ended: as its run said, or as
the folder of a dead controller's run says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from engine.config.errors import WorkbenchError
from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import FROM_OUTSIDE, Ending, RunOutcome, StopAnswer
from profilers.model.run_summary import RunSummary
from tuning.analysis import leaderboard, scoring
from tuning.analysis.learning import learning
from tuning.spec import terms
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial

ShouldStop = Callable[[], StopAnswer]
OnStart = Callable[[Path], None] | None
Ran = tuple[RunOutcome, RunSummary]


class EndOfTrialsError(WorkbenchError):
    """There is nothing left to run trials on; the message says why."""


class EndOfSearchError(EndOfTrialsError):
    """Nothing else is worth a trial of the search; what was found may still be measured again."""


class CostlyBaselineError(EndOfTrialsError):
    """The baseline is too dear to be measured again; the leaders may be, beside each other."""


class Execute(Protocol):
    """Runs one configuration; an ending is data. ``on_start`` is called with the run's folder.

    Raises:
        EndOfTrialsError: it cannot run this one, or any other.
    """

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran: ...


def read_ended_run(home: Path, trial: Trial) -> tuple[RunOutcome, RunSummary, float] | None:
    """How the run of a trial ended, what it measured, and when (Unix time); None if it was going on, or if its folder
    cannot be read.
    """
    folder = home / (trial.run or "")
    status = run_folder.RunStatus.from_folder(folder)
    summary = run_folder.read_json(folder / run_folder.SUMMARY) if trial.run else None
    if summary is None or status.state != "ended" or status.outcome is None or status.ended_unix is None:
        return None
    try:
        outcome = status.outcome.outcome()
        stored = RunSummary.from_dict(summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    ours = outcome.ending not in FROM_OUTSIDE and stored.id == trial.run
    return (outcome, stored, status.ended_unix) if ours else None


def trial_record(
    trial: Trial, outcome: RunOutcome, summary: RunSummary, state: StudyState, file: StudyFile
) -> dict[str, Any]:
    """Value and constraints of a run that ended, and the reason where a loss was not good enough."""
    outcome = terms.environment_outcome(outcome, summary)
    record = scoring.measure_values(outcome, summary, file.aim, trial.window or file.config.train.known_steps)
    judged = _judge_loss(trial, summary, state, file)
    record["constraints"] = scoring.constraints(outcome, trial.attempt > 0, judged)
    if outcome.good and judged is not None and judged.state != "satisfied":
        record["reason"] = outcome.reason or judged.reason
    return scoring.add_measures(record, outcome, summary, file)


def planned_actions(summary: RunSummary) -> dict[str, Any]:
    """What a budget for activations came to: the action of each block, from the model's first on; empty without one."""
    rows = sorted(summary.memory_plans, key=lambda row: row.first)
    return {"memory.block_actions": [action for row in rows for action in row.actions]} if rows else {}


def orphan_record(trial: Trial, home: Path, state: StudyState, file: StudyFile) -> dict[str, Any]:
    """What became of a trial whose owner died: how its run ended if it did, else that it is lost."""
    ended = read_ended_run(home, trial)
    if ended is None:
        reason = "the process that ran the study died during this trial"
        return {"run": trial.run, "outcome": Ending.LOST.value, "reason": reason}
    outcome, summary, ended_unix = ended
    seconds = max(0.0, ended_unix - trial.proposed_unix)
    return trial_record(trial, outcome, summary, state, file) | {"seconds": seconds}


def _judge_loss(
    trial: Trial, summary: RunSummary, state: StudyState, file: StudyFile
) -> scoring.GuardResult | None:
    """What is asked of its loss; None of an exact one, unless a loss is to be reached, and of a window."""
    if trial.window is not None:
        return None
    if file.target_loss is not None:
        return scoring.reaches_target(summary, file.target_loss)
    if file.in_time or not scoring.is_lossy(file.config.flat() | trial.config):
        return None
    stands = leaderboard.make_leaderboard(state, file)
    loss = stands.baseline.validation_loss if stands.baseline else None
    loss = loss if file.live is None else summary.reference_loss
    steps = len(summary.losses)
    own_loss = scoring.loss_at(summary, file.config.train.known_steps or steps)
    return scoring.judge(own_loss, loss, steps, file.guard, learning(summary, own_loss, loss, steps))
