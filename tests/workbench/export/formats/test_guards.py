"""Mistakes that the trainers' own parsers let through are refused on import: field, value, remedy."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from workbench.export import importing
from workbench.export.mapping import documents
from workbench.export.targets import find_target

_DS: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
_FSDP = {"distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "no"}
_SIZES = "parallelism_config.parallelism_config_"
#: Format, what is wrong in a file that is right without it, ranks, the key that is named.
PLANTED: list[tuple[str, dict[str, Any], int, str]] = [
    ("deepspeed", {"zero_optimisation": {"stage": 2}}, 2, "zero_optimisation.stage"),
    ("deepspeed", {"activation_checkpointing.partition_activation": True}, 2, "activation_checkpointing.part"),
    ("deepspeed", {"pipeline.stage": 2}, 2, "pipeline.stage"),
    ("deepspeed", {"expert_parallel.autoep_sizes": 2}, 2, "expert_parallel.autoep_sizes"),
    ("deepspeed", {"optimizer.type": "AdmW"}, 2, "optimizer.type"),
    ("deepspeed", {"optimizer.type": "AdamW", "optimizer.params.learning_rate": 1e-3}, 2, "learning_rate"),
    ("deepspeed", {"scheduler.type": "WarmUpLR"}, 2, "scheduler.type"),
    ("deepspeed", {"optimizer.type": "OneBitAdam", "zero_optimization.stage": 2}, 2, "optimizer.type"),
    ("deepspeed", {"tensor_parallel.autotp_size": 3}, 2, "tensor_parallel.autotp_size"),
    ("deepspeed", {"zero_optimization.stage": 3, "zero_optimization.zero_hpz_partition_size": 3}, 2, "hpz"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.zero_quantized_gradients": True}, 2, "quantized"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.offload_param.device": "cpu"}, 2, "offload_param"),
    ("deepspeed", {"zero_optimization.stage": 5}, 2, "zero_optimization.stage"),
    ("deepspeed", {"train_batch_size": 7}, 2, "train_batch_size"),
    ("accelerate", _FSDP | {"fsdp_config.fsdp_version": 2, "fsdp_config.fsdp_reshard": True}, 2, "fsdp_reshard"),
    ("accelerate", _FSDP | {"fsdp_config.fsdp_version": 3}, 2, "fsdp_version"),
    ("accelerate", _FSDP | {"fsdp_config.fsdp_version": 2,
                            "fsdp_config.fsdp_reshard_after_forward": "maybe"}, 2, "reshard_after_forward"),
    ("accelerate", _FSDP | {f"{_SIZES}tensor_size": 2}, 2, "tensor_size"),
    ("accelerate", _FSDP | {f"{_SIZES}tp_size": 3}, 2, "tp_size"),
    ("accelerate", _FSDP | {f"{_SIZES}dp_shard_size": 0}, 2, "dp_shard_size"),
    ("accelerate", _FSDP | {"use_cpu": True}, 2, "use_cpu"),
    ("accelerate", _FSDP | {"distributed_type": "MULTI_CPU"}, 2, "distributed_type"),
    ("hf", {"fsdp": True, "fsdp_config.reshard": True}, 2, "fsdp_config.reshard"),
    ("hf", {"fsdp": True, "fsdp_config.version": 3}, 2, "fsdp_config.version"),
    ("hf", {"per_device_train_batch_size": -2}, 2, "per_device_train_batch_size"),
    ("hf", {"gradient_accumulation_steps": "3"}, 2, "gradient_accumulation_steps"),
    ("hf", {"parallelism_config": {"tp_size": 2}}, 2, "parallelism_config"),
    ("hf", {"max_stepz": 3}, 2, "max_stepz"),
    ("megatron", {"--sequence-parallel": True}, 2, "--sequence-parallel"),
    ("megatron", {"--recompute-granularity": "full"}, 2, "--recompute-granularity"),
    ("megatron", {"--ddp-bucket-size": -1}, 2, "--ddp-bucket-size"),
    ("megatron", {"--num-attention-heads": 4, "--tensor-model-parallel-size": 8}, 8, "--tensor-model-parallel-size"),
    ("megatron", {"--tensor-model-parallel-size": 3}, 8, "--tensor-model-parallel-size"),
    ("megatron", {"--tensor-parallel": 2}, 2, "--tensor-parallel"),
    ("torchtitan", {"training.global_batch_size": 7}, 2, "training.global_batch_size"),
    ("torchtitan", {"parallelism.expert_parallel_degree": 3}, 2, "parallelism.expert_parallel_degree"),
    ("torchtitan", {"parallelism.tensor_parallel": 2}, 2, "parallelism.tensor_parallel"),
    ("torchtitan", {"parallelism.tensor_parallel_degree": 3}, 2, "parallelism.tensor_parallel_degree"),
    ("automodel", {"distributed.tp_size": 0}, 2, "distributed.tp_size"),
    ("automodel", {"distributed.tp_size": "two"}, 2, "distributed.tp_size"),
    ("automodel", {"distributed.tp_sizes": 2}, 2, "distributed.tp_sizes"),
    ("automodel", {"distributed.dp_size": 4}, 2, "distributed.dp_size"),
]  # fmt: skip
SOUND: dict[str, tuple[dict[str, Any], int]] = {
    "deepspeed": (_DS, 2),
    "accelerate": (_FSDP, 2),
    "hf": ({"per_device_train_batch_size": 2}, 2),
    "megatron": ({"--micro-batch-size": 2, "--num-layers": 4}, 2),
    "torchtitan": ({"training.local_batch_size": 2}, 2),
    "automodel": ({"step_scheduler.local_batch_size": 2}, 2),
}


@pytest.mark.parametrize(("name", "wrong", "ranks", "field"), PLANTED)
def test_a_planted_mistake_is_named(name: str, wrong: dict[str, Any], ranks: int, field: str) -> None:
    form = find_target(name).format
    assert form is not None
    text = form.text(SOUND[name][0] | wrong)
    with pytest.raises(InputError) as refused:
        importing.read_text(form, text, ranks, {})
    assert field in refused.value.field
    assert refused.value.remedy


@pytest.mark.parametrize("name", SOUND)
def test_the_file_without_it_is_read(name: str) -> None:
    form, (document, ranks) = find_target(name).format, SOUND[name]
    assert form is not None
    assert importing.read_text(form, form.text(document), ranks, {}).config.parallel.dp == ranks


def test_a_key_is_refused_with_its_nearest_and_the_version() -> None:
    (problem,) = documents.unknown_keys("hf", {"learning_rat": 1e-3})
    assert "learning_rate" in problem.remedy
    assert "transformers 5.23.0" in problem.remedy
