"""Real runs on warm gloo ranks, for tests that need one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from engine.run.outcome import RunOutcome
from engine.session import Session
from profilers.analysis.events import VALIDATION_EVENT, retained_events
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords

SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    "train": {"steps": 3, "warmup": 1, "step_timeout_seconds": 60.0},
    "device": "cpu",
}


def small(**values: Any) -> RunConfig:
    """A configuration of three small steps; ``parallel__tp=2`` sets ``parallel.tp``."""
    return parse(SMALL).with_values({key.replace("__", "."): value for key, value in values.items()})


def execute(
    session: Session,
    config: RunConfig,
    should_stop: Callable[[], bool] = lambda: False,
    on_start: Callable[[Path], None] | None = None,
) -> tuple[RunOutcome, RunSummary]:
    """One run with no labels, whose summary reads back from its file as it was."""
    outcome, summary = session.execute(config, {}, should_stop, on_start)
    if summary.id:
        kept = run_folder.read_json(session.home / summary.id / run_folder.SUMMARY)
        assert kept is None or RunSummary.from_dict(kept).as_dict() == summary.as_dict()
    if outcome.good and summary.validation_loss is not None:
        check_who_told(session.home / summary.id)
    return outcome, summary


def check_who_told(folder: Path) -> None:
    """As many ranks told each loss on held-out text as they say: a mean over fewer of them would be another loss."""
    records, told, wanted = RunRecords(folder / run_folder.RECORDS), Counter[int](), dict[int, int]()
    for rank in records.ranks():
        for event in retained_events(records.events(rank)):
            if event.kind == VALIDATION_EVENT:
                told[event.data["step"]] += 1
                wanted[event.data["step"]] = event.data["ranks"]
    assert told == wanted
