"""What the journal keeps of how a trial ended: as its run said, or as the dead controller of a trial left it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tuning import objective, ranking, recovered, surroundings
from tuning.state import StudyState, Trial
from tuning.studyfile import StudyFile


def told(
    trial: Trial, outcome: RunOutcome, summary: RunSummary, state: StudyState, file: StudyFile
) -> dict[str, Any]:
    """Value and constraints of a run that ended, and the reason where a loss was not good enough."""
    outcome = surroundings.as_asked(outcome, summary)
    found = objective.measured(outcome, summary, file.aim)
    judged = _judged(trial, summary, state, file)
    found["constraints"] = objective.constraints(outcome, trial.attempt > 0, judged)
    if outcome.good and judged is not None and judged.state != "satisfied":
        found["reason"] = outcome.reason or judged.reason
    return objective.with_measures(found, outcome, summary, file)


def left_behind(trial: Trial, home: Path, state: StudyState, file: StudyFile) -> dict[str, Any]:
    """What became of a trial whose owner died: how its run ended if it did, else that it is lost."""
    found = recovered.ended_run(home, trial)
    if found is None:
        reason = "the process that ran the study died during this trial"
        return {"run": trial.run, "outcome": Ending.LOST.value, "reason": reason}
    outcome, summary, ended_unix = found
    seconds = max(0.0, ended_unix - trial.proposed_unix)
    return told(trial, outcome, summary, state, file) | {"seconds": seconds}


def _judged(trial: Trial, summary: RunSummary, state: StudyState, file: StudyFile) -> objective.Judged | None:
    """What is asked of its loss; None of an exact one, unless a loss is to be reached."""
    if file.target_loss is not None:
        return objective.reached(summary, file.target_loss)
    if not objective.is_lossy(file.config.flat() | trial.config):
        return None
    stands = ranking.standing(state, file)
    loss = stands.baseline.validation_loss if stands.baseline else None
    return objective.judge(summary.validation_loss, loss, len(summary.losses), file.guard)
