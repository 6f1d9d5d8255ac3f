"""Racing on real ranks: a slow trial ends early at a common step, counts with its interval, and changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from engine.run.outcome import EarlyEnd, Ending
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.engine.own_models import HERE
from tests.support.runs import execute, small
from tests.support.studies.fake import run_study
from tuning.spec.study_file import parse
from tuning.storage.study_folder import STUDIES

STEPS = 16
#: One large micro-batch a step, or eight small ones, each of which takes so many seconds: several times as slow,
#: whatever else the machine does.
FAST, SLOW, SECONDS = 8, 1, 0.04


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Warm ranks with a home of their own."""
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


def planted(name: str, **more: Any) -> dict[str, Any]:
    """A study of two trials, of which the second is planted to be slow."""
    train = {"steps": STEPS, "warmup": 2, "validation_batches": 0}
    model = {"workload": f"{HERE}:long_losses", "options": {"seconds": SECONDS}}
    batch = {"global_batch": 16, "micro_batch": FAST}
    base = {"model": model, "batch": batch, "train": train, "device": "cpu"}
    space = {"batch.micro_batch": [FAST, SLOW]}
    return {"name": name, "ranks": 2, "trials": 2, "confirm_repeats": 0, "base": base, "space": space} | more


def test_a_slow_trial_is_raced_out_and_the_result_is_the_same(session: Session) -> None:
    found = {}
    for name, racing in (("raced", True), ("whole", False)):
        file = parse(planted(name, racing=racing))
        found[name] = run_study(file, session.home / STUDIES / name, session.execute)
    raced, whole = (found[name]["trials"][1] for name in ("raced", "whole"))
    assert found["raced"]["best"]["config"] == found["whole"]["best"]["config"]
    assert found["raced"]["recommended"]["trial"] == found["whole"]["recommended"]["trial"] == 0
    assert (raced["outcome"], whole["outcome"]) == ("pruned", "completed")
    assert raced["reason"].startswith("stopped early: could not reach the leader, after ")
    assert 5 <= raced["steps"] - 2 < STEPS - 2 == whole["steps"] - 2
    assert raced["low"] < raced["value"] < raced["high"] < found["raced"]["best"]["value"]
    assert_ended_together(session.home / raced["run"], raced["steps"])


def assert_ended_together(run: Path, steps: int) -> None:
    records = RunRecords(run / run_folder.RECORDS)
    assert {len(records.table(rank, "step")) for rank in (0, 1)} == {steps}
    status, summary = (
        run_folder.read_json(run / name) or {} for name in (run_folder.STATUS, run_folder.SUMMARY)
    )
    assert status["outcome"]["ending"] == "pruned"
    assert summary["measured_steps"] == steps - 2


def test_an_early_end_can_be_a_good_one(session: Session) -> None:
    """The ranks that ended early serve the next run."""
    enough = EarlyEnd(Ending.COMPLETED, "enough")
    asked = [False]

    def soon() -> bool | EarlyEnd:
        return enough if asked[0] else False

    config = small(train__steps=2000, parallel__dp=2)
    outcome, summary = execute(session, config, soon, lambda folder: asked.__setitem__(0, True))
    assert (outcome.ending, outcome.reason, outcome.good) == (Ending.COMPLETED, "enough", True)
    assert 0 < len(summary.losses) < 2000
    assert execute(session, small(parallel__dp=2))[0].ending is Ending.COMPLETED
    asked[0] = True
    outcome, summary = execute(session, small(parallel__dp=2, train__steps=2), soon)
    assert (outcome.ending, outcome.reason, len(summary.losses)) == (Ending.COMPLETED, "", 2)
