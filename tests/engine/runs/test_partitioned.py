"""Parts that learn apart send nothing, learn as in one process, and are joined."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.session import Session
from tests.support.runs import execute, small


def partitioned(steps: int, apart: int, **more: Any) -> RunConfig:
    wanted = {"model__workload": "partitioned", "model__options": {"apart": apart, "width": 16, "layers": 4}}
    return small(**wanted | {"train__steps": steps, "train__validation_batches": 2} | more)


def test_the_first_phase_sends_nothing(session: Session) -> None:
    outcome, summary = execute(session, partitioned(6, 6, parallel__pp=2))
    assert outcome.good, outcome
    assert not summary.communication and not summary.wire_bytes_per_step
    assert len(set(summary.losses)) == 6


def test_both_phases_learn_as_in_one_process(session: Session) -> None:
    found = [execute(session, partitioned(6, 4, parallel__pp=pp)) for pp in (1, 2)]
    assert all(outcome.good for outcome, _ in found), found
    one, two = (summary for _, summary in found)
    assert two.losses == pytest.approx(one.losses, abs=1e-5, rel=0)
    assert two.validation_loss == pytest.approx(one.validation_loss, abs=1e-5)
    assert two.wire_bytes_per_step, "the second phase is a pipeline"
