"""The same runs on NCCL: one rank wherever there is a GPU, two ranks on it where NCCL lets them, and the whole
matrix where there are enough GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import _nccl
from engine.config.layout import layout_of
from engine.config.run_config import parse
from engine.session import Session
from tests.engine.runs.test_exact import DEEP, layouts, name
from tests.engine.runs.test_matrix import EXPERTS, SIZES, combinations, composed
from tests.support.runs import execute, small

pytestmark = pytest.mark.gpu
# CUDA's matrix kernels add in another order than the CPU's.
LOSS_TOLERANCE = 1e-4

ALONE: list[dict[str, Any]] = [
    {},
    {"parallel__zero_stage": 3},
    {"memory__recompute": "full"},
    {"memory__recompute": "selective", "memory__offload": "both"},
    {"memory__recompute": "full", "memory__recompute_layers": 2, "memory__offload": "activations"},
    {"schedule__kind": "layered", "schedule__chunks": 4},
    {"schedule__kind": "zb_v", "schedule__chunks": 2},
    EXPERTS,
    EXPERTS | {"model__capacity_factor": 1.25},
]


@pytest.mark.parametrize("values", ALONE, ids=str)
def test_one_gpu_equals_the_cpu(session: Session, values: dict[str, Any]) -> None:
    _, reference = execute(session, small(device="cpu", **values))
    outcome, summary = execute(session, small(device="cuda", **values))
    assert outcome.good, outcome
    assert summary.backend == "nccl"
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)
    assert sum(summary.phases.values()) > 0
    assert summary.peak_memory_bytes


@pytest.fixture(scope="module")
def shared_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for runs of two ranks on one GPU; skips where NCCL refuses them."""
    home = tmp_path_factory.mktemp("shared")
    losses = _nccl.losses_of(parse(_nccl.SMALL).with_values({"parallel.dp": 2}), home)
    if isinstance(losses, str):
        pytest.skip(f"two ranks on one GPU do not run here: {losses}")
    return home


@pytest.mark.parametrize("case", _nccl.CASES, ids=[case[0] for case in _nccl.CASES])
def test_two_ranks_on_one_gpu_equal_one(
    shared_gpu: Path, case: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    _, degrees, extra = case
    alone = _nccl.losses_of(parse(_nccl.SMALL).with_values(extra), shared_gpu)
    together = _nccl.losses_of(parse(_nccl.SMALL).with_values(degrees | extra), shared_gpu)
    assert together == pytest.approx(alone, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize("values", layouts(), ids=name)
def test_four_gpus_equal_the_cpu(session: Session, values: dict[str, Any]) -> None:
    needs(4)
    _, reference = execute(session, small(device="cpu", **DEEP))
    outcome, summary = execute(session, small(device="cuda", **DEEP | values))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)


@pytest.mark.parametrize("names", combinations(2) + combinations(3), ids="-".join)
def test_the_matrix_on_gpus(session: Session, names: tuple[str, ...]) -> None:
    config = composed(names)
    assert config is not None
    needs(layout_of(config).world_size)
    alone = small(**SIZES | (EXPERTS if "ep" in names else {}))
    _, reference = execute(session, alone.with_values({"device": "cpu", "batch.micro_batch": 8}))
    outcome, summary = execute(session, config.with_values({"device": "cuda"}))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)


def needs(gpus: int) -> None:
    """Skips where there are fewer."""
    import torch

    if torch.cuda.device_count() < gpus:
        pytest.skip(f"{torch.cuda.device_count()} GPUs here; this layout takes {gpus}")
