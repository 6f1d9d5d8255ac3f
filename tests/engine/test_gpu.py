"""The same runs on NCCL: one rank wherever there is a GPU, all layouts where there are four."""

from __future__ import annotations

from typing import Any

import pytest

from engine.session import Session
from tests.engine.test_exact import layouts, name
from tests.support.runs import execute, small

pytestmark = pytest.mark.gpu
# CUDA's matrix kernels add in another order than the CPU's.
LOSS_TOLERANCE = 1e-4


@pytest.mark.parametrize("values", [{}, {"parallel__zero_stage": 3}, {"memory__recompute": "full"}], ids=str)
def test_one_gpu_equals_the_cpu(session: Session, values: dict[str, Any]) -> None:
    _, reference = execute(session, small())
    outcome, summary = execute(session, small(device="cuda", **values))
    assert outcome.good, outcome
    assert summary.backend == "nccl"
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)
    assert sum(summary.phases.values()) > 0
    assert summary.peak_memory_bytes


@pytest.mark.parametrize("values", layouts(), ids=name)
def test_four_gpus_equal_the_cpu(session: Session, values: dict[str, Any]) -> None:
    import torch

    if torch.cuda.device_count() < 4:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here; this layout takes 4")
    _, reference = execute(session, small())
    outcome, summary = execute(session, small(device="cuda", **values))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)
