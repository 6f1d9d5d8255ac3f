"""A trial whose run ended, but whose study died before its journal had it: the run's folder still says how."""

from __future__ import annotations

from pathlib import Path

from engine.run import run_folder
from engine.run.outcome import FROM_OUTSIDE, RunOutcome
from profilers.model.run_summary import RunSummary
from tuning.state import Trial


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
