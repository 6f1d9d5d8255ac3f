"""Every layout on a backend with NCCL's habits, against one process; NCCL itself is for a machine with GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.run import run_folder
from engine.run.devices.selection import BACKEND_VARIABLE
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.engine.runs.test_matrix import AXES, LOSS_TOLERANCE, SIZES, combinations, compare, one_process
from tests.support.gpu import like_nccl
from tests.support.runs import execute, small

pytestmark = pytest.mark.skipif(like_nccl.why_not() is not None, reason=str(like_nccl.why_not()))

#: Settings that communicate in ways of their own, against the same on gloo.
VARIANTS: dict[str, dict[str, Any]] = {
    "gathered with the optimizer": AXES["zero1"] | {"overlap__gather_with_optimizer": True},
    "tp in chunks": AXES["tp"] | {"overlap__tp_chunks": 2},
    "zero 3 in bf16": AXES["zero3"] | {"precision": "bf16"},
    "int8": AXES["dp"] | {"compression__method": "int8"},
    "powersgd": AXES["dp"] | {"compression__method": "powersgd"},
    "topk": AXES["dp"] | {"compression__method": "topk"},
    "sign": AXES["dp"] | {"compression__method": "sign"},
    "diloco": AXES["dp"] | {"outer__method": "diloco", "outer__period": 2},
    "co2": AXES["dp"] | {"outer__method": "co2", "outer__period": 1},
    "saved": AXES["1f1b"] | {"checkpoint__every_steps": 2},
}


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session whose ranks take the backend."""
    like_nccl.build()
    with pytest.MonkeyPatch.context() as patch, Session(tmp_path_factory.mktemp("nccl")) as warm:
        patch.setenv(BACKEND_VARIABLE, like_nccl.BACKEND)
        yield warm


@pytest.fixture(scope="module")
def alone(nccl: Session) -> dict[bool, RunSummary]:
    """One process, without and with experts."""
    return one_process(nccl)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("names", combinations(2), ids="-".join)
def test_pairs_equal_one_process(
    nccl: Session, alone: dict[bool, RunSummary], names: tuple[str, ...]
) -> None:
    compare(nccl, alone, names)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("names", combinations(3), ids="-".join)
def test_triples_equal_one_process(
    nccl: Session, alone: dict[bool, RunSummary], names: tuple[str, ...]
) -> None:
    compare(nccl, alone, names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zb_h1", "zb_v", "breadth_first", "layered"])
def test_pipelines_of_four_equal_one_process(nccl: Session, alone: dict[bool, RunSummary], kind: str) -> None:
    """Where the last rank sends to the first one, too, in some schedules."""
    config = small(**SIZES | AXES[kind] | {"parallel__pp": 4, "schedule__chunks": min(2, chunks_of(kind))})
    outcome, summary = execute(nccl, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(alone[False].losses, abs=LOSS_TOLERANCE, rel=0)


def chunks_of(kind: str) -> int:
    chunks: int = AXES[kind].get("schedule__chunks", 1)
    return chunks


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_equal_gloo(
    nccl: Session, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = small(**SIZES | VARIANTS[name])
    outcome, summary = execute(nccl, config)
    assert outcome.good, outcome
    status = run_folder.read_json(nccl.home / summary.id / run_folder.STATUS) or {}
    assert status["backend"] == like_nccl.BACKEND
    monkeypatch.delenv(BACKEND_VARIABLE)
    gloo = execute(nccl, config)[1]
    assert summary.losses == pytest.approx(gloo.losses, abs=LOSS_TOLERANCE, rel=0)
    assert summary.losses
