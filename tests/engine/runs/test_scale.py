"""Many ranks on one machine: slow, but the same numbers."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from engine.session import Session
from tests.support.runs import execute, small

#: Private memory of a rank, measured with some reserve.
RANK_BYTES = 200 * 2**20
THIN: dict[str, Any] = {
    "model__layers": 4,
    "model__hidden": 32,
    "model__ffn_hidden": 64,
    "batch__global_batch": 64,
    "data__sequence_length": 32,
    "train__validation_batches": 0,
    "train__step_timeout_seconds": 300.0,
    "train__timeout_seconds": 540.0,
}
LAYOUTS: list[dict[str, Any]] = [
    {"parallel__dp": 64},
    {"parallel__dp": 8, "parallel__tp": 2, "parallel__pp": 4},
    {"parallel__dp": 4, "parallel__cp": 4, "parallel__tp": 2, "parallel__pp": 2, "parallel__zero_stage": 1},
]


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.parametrize("values", LAYOUTS, ids=lambda values: "-".join(map(str, values.values())))
def test_64_ranks_train(session: Session, values: dict[str, Any]) -> None:
    if psutil.virtual_memory().available < 64 * RANK_BYTES:
        pytest.skip(f"64 ranks need {64 * RANK_BYTES / 2**30:.0f} GiB of free memory")
    _, alone = execute(session, small(**THIN))
    outcome, summary = execute(session, small(**THIN | values))
    assert outcome.good, outcome
    assert summary.world_size == 64
    assert summary.losses == pytest.approx(alone.losses, abs=1e-5, rel=0)
