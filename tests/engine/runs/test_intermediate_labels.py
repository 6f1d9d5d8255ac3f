"""Parts that learn apart send nothing, learn as in one process, and are joined."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.run.progress import read
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests.support.runs import execute, small
from tests.support.waiting import wait_until


def partitioned(steps: int, apart: int, **more: Any) -> RunConfig:
    wanted = {"model__workload": "partitioned", "model__options": {"apart": apart, "width": 16, "layers": 4}}
    return small(**wanted | {"train__steps": steps, "train__validation_batches": 2} | more)


def test_the_first_phase_sends_nothing(session: Session) -> None:
    outcome, summary = execute(session, partitioned(6, 6, parallel__pp=2))
    assert outcome.good, outcome
    assert not summary.communication and not summary.wire_bytes_per_step
    assert len(set(summary.losses)) == 6


def test_ranks_that_send_nothing_stay_together(session: Session) -> None:
    """Else they would not agree on where a run ends that has a time, or is stopped."""
    seen = list[int]()

    def hold_one_up(run: Path) -> None:
        def watch() -> None:
            if not wait_until(lambda: min((place.step for place in read(run)), default=0) >= 3):
                return
            held = next(place for place in read(run) if place.rank == 1)
            os.kill(held.pid, signal.SIGSTOP)
            time.sleep(0.5)
            seen.extend(place.step for place in read(run))
            os.kill(held.pid, signal.SIGCONT)

        threading.Thread(target=watch, daemon=True).start()

    config = partitioned(3, 10**6, parallel__pp=2, train__seconds=4.0)
    outcome, summary = execute(session, config, on_start=hold_one_up)
    assert outcome.good, outcome
    assert len(seen) == 2 and max(seen) - min(seen) <= 1
    records = RunRecords(session.home / summary.id / RECORDS)
    ends = [
        max(row.step for row in records.table(rank, "step").rows() if isinstance(row, StepSample))
        for rank in (0, 1)
    ]
    assert ends[0] == ends[1] == len(summary.losses) - 1


def test_both_phases_learn_as_in_one_process(session: Session) -> None:
    found = [execute(session, partitioned(6, 4, parallel__pp=pp)) for pp in (1, 2)]
    assert all(outcome.good for outcome, _ in found), found
    one, two = (summary for _, summary in found)
    assert two.losses == pytest.approx(one.losses, abs=1e-5, rel=0)
    assert two.validation_loss == pytest.approx(one.validation_loss, abs=1e-5)
    assert two.wire_bytes_per_step, "the second phase is a pipeline"
