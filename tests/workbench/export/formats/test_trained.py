"""Exports train three steps in the trainers themselves, on two gloo ranks: as many ranks as asked for, wrapped and
sharded as asked for, and with the losses of one process. An exit code of 0 would prove nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import several
from engine.config.run_config import RunConfig
from tests.support.trainers.results import noted
from tests.support.trainers.training import small, trained, trained_as
from workbench.export.formats.hf import HF

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Alone = Callable[..., list[dict[str, Any]]]
CPU = {"ACCELERATE_TORCH_DEVICE": "cpu"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """One process of a trainer, trained once."""
    known: dict[str, list[dict[str, Any]]] = {}

    def of(name: str, config: RunConfig, *words: str, **variables: str) -> list[dict[str, Any]]:
        if name not in known:
            known[name] = trained(name, config, tmp_path_factory.mktemp(name), *words, **variables)
        return known[name]

    return of


def checked(one: list[dict[str, Any]], two: list[dict[str, Any]], wrapper: str, held: float) -> None:
    """World size, wrapper, sharding, steps, and the losses of one process."""
    assert [told["rank"] for told in two] == [0, 1]
    for told in two:
        assert told["world"] == 2
        assert wrapper in told["wrapper"]
        assert told["steps"] == 3
        assert told["held"] == told["whole"] * held
        assert len(told["losses"]) == 3
        assert told["losses"] == pytest.approx(one[0]["losses"], abs=2e-4)
    assert one[0]["world"] == 1
    assert len(set(one[0]["losses"])) == 3, "it learns"


def result(found: list[dict[str, Any]]) -> str:
    """What ranks did, in words."""
    (count,) = {told["replaced"] for told in found}
    replaced = f", {several(count, 'functions')} replaced" if count else ""
    return f"{found[0]['steps']} steps, {len(found)} ranks{replaced}"


@pytest.mark.parametrize(
    ("stage", "wrapper", "held"), [(0, "DistributedDataParallel", 1), (2, "FSDP", 0.5), (3, "FSDP", 0.5)]
)
def test_hf(stage: int, wrapper: str, held: float, tmp_path: Path, alone: Alone) -> None:
    one = alone("hf", small(1, device="cpu"))
    if stage:
        found = trained("hf", small(2, parallel__zero_stage=stage), tmp_path / "two", "replaced", **CPU)
    else:
        found = trained("hf", small(2, device="cpu"), tmp_path / "two")
    checked(one, found, wrapper, held)
    noted("hf", "trained", f"ZeRO {stage}", result(found))


def test_on_cpus_the_trainer_of_hugging_face_shards_nothing(tmp_path: Path) -> None:
    """Why ``use_cpu`` is never written beside FSDP, and refused there."""
    document = HF.make_document(small(2, parallel__zero_stage=3, device="cpu"))
    assert document["fsdp"] is True and "use_cpu" not in document
    for told in trained_as("hf", document | {"use_cpu": True}, 2, tmp_path):
        assert (told["world"], told["wrapper"], told["held"]) == (2, "DistributedDataParallel", told["whole"])


@pytest.mark.parametrize(
    ("stage", "wrapper", "held"), [(0, "DistributedDataParallel", 1), (2, "FSDP", 0.5), (3, "FSDP", 0.5)]
)
def test_accelerate(stage: int, wrapper: str, held: float, tmp_path: Path, alone: Alone) -> None:
    cpu = {"ACCELERATE_USE_CPU": "true"}
    one = alone("accelerate", small(1), "2", "4", **cpu)
    if stage:
        config = small(2, parallel__zero_stage=stage)
        found = trained("accelerate", config, tmp_path / "two", "2", "2", "replaced", **CPU)
    else:
        found = trained("accelerate", small(2), tmp_path / "two", "2", "2", **cpu)
    checked(one, found, wrapper, held)
    noted("accelerate", "trained", f"ZeRO {stage}", result(found))


#: By the stage: torch's own of stage 0, in an engine of DeepSpeed all the same.
_UPDATED_BY = {0: "AdamW", 1: "DeepSpeedZeroOptimizer", 2: "DeepSpeedZeroOptimizer",
               3: "DeepSpeedZeroOptimizer_Stage3"}  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed(stage: int, tmp_path: Path, alone: Alone) -> None:
    one = alone("deepspeed", small(1))
    found = trained("deepspeed", small(2, parallel__zero_stage=stage), tmp_path / "two")
    checked(one, found, _UPDATED_BY[stage], 0.5 if stage == 3 else 1)
    for told in found:
        assert (told["engine"], told["wrapper"], told["stage"]) == (
            "DeepSpeedEngine",
            _UPDATED_BY[stage],
            stage,
        )
        part = told["updated"] / told["parameters"]
        assert part == pytest.approx(0.5 if stage else 1, abs=0.01), (
            "of the optimizer's state a rank has its part"
        )
    noted("deepspeed", "trained", f"ZeRO {stage}", result(found))


def test_megatron(tmp_path: Path, alone: Alone) -> None:
    """Megatron's arguments and the model of its core, tensor and sequence parallel, in a loop of ours."""
    plain = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    shape = {"model__layers": 2, "model__hidden": 64, "model__ffn_hidden": 128, "model__kv_heads": 2}
    one = alone("megatron", small(1, **shape), **plain)
    found = trained("megatron", small(1, parallel__tp=2, **shape), tmp_path / "two", **plain)
    checked(one, found, "ColumnParallelLinear", 0.5)
    noted("megatron", "trained", "tp 2", f"{result(found)}; its arguments and model, in a loop of ours")


@pytest.mark.parametrize(
    ("name", "layout", "held"),
    [
        ("ZeRO 0", {}, 1),
        ("ZeRO 2", {"parallel__zero_stage": 2}, 0.5),
        ("ZeRO 3", {"parallel__zero_stage": 3}, 0.5),
        ("tp 2", {"parallel__dp": 1, "parallel__tp": 2}, 0.5),
    ],
)
def test_torchtitan(name: str, layout: dict[str, int], held: float, tmp_path: Path, alone: Alone) -> None:
    """torchtitan's own trainer."""
    one = alone("torchtitan", small(1))
    found = trained("torchtitan", small(2, **layout), tmp_path / "two")
    checked(one, found, "FSDP", held)
    noted("torchtitan", "trained", name, result(found))
