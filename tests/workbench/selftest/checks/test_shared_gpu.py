"""The check of two ranks on one GPU, here with CPU ranks on the backend that has NCCL's habits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from engine.config.run_config import parse
from tests.support.gpu import like_nccl
from workbench.selftest.check_context import SMALL, CheckContext
from workbench.selftest.checks import layouts, shared_gpu
from workbench.selftest.results import Outcome

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(like_nccl.why_not() is not None, reason=str(like_nccl.why_not())),
]
LAYOUTS = layouts.data(2) | layouts.tensor(2) | layouts.context(2) | layouts.expert(2) | layouts.pipeline(2)
SOME = ("dp", "zero_3", "tp", "cp_ring", "ep", "pp_1f1b")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks find this checkout's tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def losses(folder: Path, values: dict[str, object], backend: str = like_nccl.BACKEND) -> shared_gpu.Losses:
    config = parse(SMALL).with_values(layouts.SIZES | values | {"device": "cpu"})
    return shared_gpu.losses_of(config, folder, "made up", backend, "cpu")


@pytest.mark.drawn(1, of="long selftests")
@pytest.mark.parametrize("name", SOME)
def test_two_ranks_have_the_losses_of_one(tmp_path: Path, name: str) -> None:
    whole = layouts.EXPERTS | {"batch.micro_batch": 8} if name == "ep" else {}
    alone, found = losses(tmp_path, whole), losses(tmp_path, LAYOUTS[name])
    assert isinstance(alone, list), alone
    assert isinstance(found, list), found
    assert layouts.largest_difference(found, alone) <= layouts.TOLERANCE_NATS["cpu"]


def test_a_rank_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    found = losses(tmp_path, LAYOUTS["dp"], "made_up_backend")
    assert isinstance(found, str)
    assert found.startswith("rank ")
    assert "made_up_backend" in found


def test_a_number_that_is_off_is_told() -> None:
    shared_gpu.same(torch.ones(2), torch.ones(2))
    with pytest.raises(AssertionError, match=r"\[1.0, 1.0\] instead of \[1.0, 2.0\]"):
        shared_gpu.same(torch.ones(2), torch.tensor([1.0, 2.0]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_check(tmp_path: Path) -> None:
    verdict = shared_gpu.two_on_one_gpu(CheckContext("cpu", 2, tmp_path), like_nccl.BACKEND, "cpu")
    assert verdict.outcome is Outcome.PASS, verdict
    assert len(verdict.measured) == len(LAYOUTS)
