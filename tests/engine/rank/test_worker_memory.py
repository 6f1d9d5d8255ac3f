"""A warm worker holds nothing of a run that is over, whatever the run was made of, and frees it in the right order."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch

from engine.config.sections import Compression, Memory, Outer, Section
from engine.rank import worker
from engine.run.outcome import Ending
from engine.schedules.registry import SCHEDULES
from tests.engine.runs.test_matrix import AXES, EXPERTS
from tests.support.engine.warm import WarmRanks, warm_ranks
from tests.support.runs import small

#: 1.4 million parameters: whatever keeps one kind of state alive keeps more than ``GROWTH_BYTES``.
BASE: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 256,
    "model__heads": 4,
    "model__kv_heads": 4,
    "model__ffn_hidden": 512,
    "batch__global_batch": 4,
    "data__sequence_length": 16,
    "overlap__bucket_mb": 0.5,
    "compression__start_step": 1,
    "outer__period": 1,
}
#: torch's own record of the latest 2,000 collectives fills up meanwhile, some 60 KB a run.
GROWTH_BYTES = 1 << 20
DP = {"parallel__dp": 2}
BF16 = {"precision": "bf16", "memory__parameters": "bf16"}


def choices(section: type[Section], field: str) -> list[str]:
    """All that a setting offers but ``none``."""
    return [one for one in get_args(section.model_fields[field].annotation) if one != "none"]


def pipeline(kind: str) -> dict[str, Any]:
    """A schedule on two ranks with the fewest chunks that make it what it is."""
    chunks = min(2, SCHEDULES[kind].chunks[-1])
    layers = {"model__layers": 2 * chunks}
    return {"parallel__pp": 2, "schedule__kind": kind, "schedule__chunks": chunks} | layers


def named(values: dict[str, Any]) -> str:
    """What a layout sets, with its values."""
    told = [f"{key.split('__')[-1]}={value}" for key, value in values.items()]
    return "-".join(told) or "plain"


LAYOUTS: list[dict[str, Any]] = [
    {},
    BF16,
    *({"parallel__zero_stage": stage} for stage in (1, 2, 3)),
    *(
        axis
        for kind, axis in AXES.items()
        if kind in ("dp", "zero1", "zero2", "zero3", "tp", "ring", "ulysses")
    ),
    AXES["ep"] | EXPERTS | {"batch__micro_batch": 2},
    *map(pipeline, SCHEDULES),
    DP | BF16,
    DP | {"overlap__delay": 1},
    AXES["zero1"] | {"overlap__gather_with_optimizer": True},
    AXES["zero3"] | {"overlap__prefetch": 1, "precision": "bf16"},
    {"parallel__tp": 2, "overlap__tp_chunks": 2},
    *(DP | {"compression__method": method} for method in choices(Compression, "method")),
    DP | {"compression__method": "randomk", "compression__error_feedback": True},
    DP | {"compression__method": "powersgd", "compression__plan": "l_greco"},
    AXES["zero1"] | {"compression__method": "int8", "compression__error_feedback": True},
    AXES["zero3"] | {"compression__method": "int8", "compression__weights": "int8"},
    *(DP | {"outer__method": method} for method in choices(Outer, "method")),
    *({"memory__offload": kind} for kind in choices(Memory, "offload")),
    *({"memory__recompute": kind} for kind in choices(Memory, "recompute")),
    DP | {"checkpoint__every_steps": 2, "checkpoint__asynchronous": True},
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    with warm_ranks(tmp_path_factory.mktemp("home"), 2) as made:
        yield made


@pytest.mark.drawn(4)
@pytest.mark.parametrize("values", LAYOUTS, ids=named)
def test_a_run_leaves_nothing_and_runs_do_not_grow(ranks: WarmRanks, values: dict[str, Any]) -> None:
    config = small(**BASE | values)
    first, second, third = (ranks.run(config) for _ in range(3))
    for left in (*first, *second, *third):
        assert left.report.ending is Ending.COMPLETED, left.report
        assert left.tensors == []
    assert all(
        after.used_bytes - before.used_bytes < GROWTH_BYTES
        for before, after in zip(second, third, strict=True)
    )


@pytest.mark.slow
def test_nor_does_a_compiled_one(ranks: WarmRanks) -> None:
    config = small(**BASE | {"compile": True})
    _, second, third = (ranks.run(config)[0] for _ in range(3))
    assert second.tensors == third.tensors == []
    assert third.used_bytes - second.used_bytes < GROWTH_BYTES


@pytest.mark.parametrize("axis", ["dp", "zero3"])
def test_nor_does_one_that_is_stopped(ranks: WarmRanks, axis: str) -> None:
    """FSDP2's weights are freed by a second collection, so there must be one."""
    config = small(**BASE | AXES[axis] | {"train__steps": 1000})
    for left in ranks.run(config, stop=True):
        assert left.report.ending is Ending.STOPPED, left.report
        assert left.tensors == []


def test_what_a_step_frees_the_next_can_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached blocks go after the tensors in them, and peaks start anew from what is then left."""
    done: list[str] = []

    class Weight:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            done.append("tensor freed")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("cache emptied"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: done.append("peaks reset"))
    monkeypatch.setattr(
        torch.accelerator, "empty_host_cache", lambda: done.append("pinned emptied"), raising=False
    )
    monkeypatch.setattr(worker, "give_back_freed", lambda: done.append("returned"))
    gc.disable()
    try:
        Weight()
        worker.free_memory()
    finally:
        gc.enable()
    assert done == ["tensor freed", "cache emptied", "pinned emptied", "peaks reset", "returned"]
