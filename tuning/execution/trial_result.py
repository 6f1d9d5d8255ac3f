"""What the journal keeps of how a trial ended, as its run said or as the folder of a dead controller's run says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.run import run_folder
from engine.run.outcome import FROM_OUTSIDE, Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from tuning.analysis import leaderboard, scoring
from tuning.spec import environment
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, Trial


def ended_run(home: Path, trial: Trial) -> tuple[RunOutcome, RunSummary, float] | None:
    """How the run of a trial ended, what it measured, and when (Unix time); None if it was going on, or if its folder
    cannot be read.
    """
    folder = home / (trial.run or "")
    status = run_folder.read_json(folder / run_folder.STATUS) if trial.run else None
    summary = run_folder.read_json(folder / run_folder.SUMMARY) if trial.run else None
    if status is None or summary is None or status.get("state") != "ended":
        return None
    try:
        outcome = RunOutcome.from_dict(status["outcome"])
        found = RunSummary.from_dict(summary)
        ended_unix = float(status["ended_unix"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if outcome.ending in FROM_OUTSIDE or found.id != trial.run else (outcome, found, ended_unix)


def told(
    trial: Trial, outcome: RunOutcome, summary: RunSummary, state: StudyState, file: StudyFile
) -> dict[str, Any]:
    """Value and constraints of a run that ended, and the reason where a loss was not good enough."""
    outcome = environment.as_asked(outcome, summary)
    found = scoring.measured(outcome, summary, file.aim)
    judged = _judged(trial, summary, state, file)
    found["constraints"] = scoring.constraints(outcome, trial.attempt > 0, judged)
    if outcome.good and judged is not None and judged.state != "satisfied":
        found["reason"] = outcome.reason or judged.reason
    return scoring.with_measures(found, outcome, summary, file)


def left_behind(trial: Trial, home: Path, state: StudyState, file: StudyFile) -> dict[str, Any]:
    """What became of a trial whose owner died: how its run ended if it did, else that it is lost."""
    found = ended_run(home, trial)
    if found is None:
        reason = "the process that ran the study died during this trial"
        return {"run": trial.run, "outcome": Ending.LOST.value, "reason": reason}
    outcome, summary, ended_unix = found
    seconds = max(0.0, ended_unix - trial.proposed_unix)
    return told(trial, outcome, summary, state, file) | {"seconds": seconds}


def _judged(trial: Trial, summary: RunSummary, state: StudyState, file: StudyFile) -> scoring.Judged | None:
    """What is asked of its loss; None of an exact one, unless a loss is to be reached."""
    if file.target_loss is not None:
        return scoring.reached(summary, file.target_loss)
    if not scoring.is_lossy(file.config.flat() | trial.config):
        return None
    stands = leaderboard.standing(state, file)
    loss = stands.baseline.validation_loss if stands.baseline else None
    return scoring.judge(summary.validation_loss, loss, len(summary.losses), file.guard)
