"""Mistakes are refused on import: field, value, remedy. Trainers' own parsers let some of them through, and refuse
others; no import asks those parsers.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.trainers.environments import problems as problems_of
from tests.support.trainers.environments import require
from tests.support.trainers.training import small
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
    ("hf", {"fsdp": True, "use_cpu": True}, 2, "use_cpu"),
    ("hf", {"fsdp": "full_shard offload", "use_cpu": True}, 2, "use_cpu"),
    ("hf", {"fsdp": "hybrid_shard"}, 2, "fsdp"),
    ("hf", {"fsdp": "full_shrd auto_wrap"}, 2, "fsdp"),
    ("hf", {"fsdp": ["full_shard", "FULL_SHARD"]}, 2, "fsdp"),
    ("hf", {"fsdp": True, "fsdp_config.reshard_after_forward": "maybe"}, 2, "reshard_after_forward"),
    ("hf", {"fsdp": True, "fsdp_config.version": 1, "fsdp_config.reshard_after_forward": True}, 2, "reshard_after"),
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
#: As above, of what the trainer's own parser refuses.
REFUSED_THERE: list[tuple[str, dict[str, Any], int, str]] = [
    ("deepspeed", {"zero_optimization.stagee": 2}, 2, "zero_optimization.stagee"),
    ("deepspeed", {"bf16.enabled": True, "fp16.enabled": True}, 2, "bf16.enabled"),
    ("deepspeed", {"communication_data_type": "fp61"}, 2, "communication_data_type"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.reduce_bucket_size": -1}, 2, "reduce_bucket_size"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.reduce_bucket_size": 0}, 2, "reduce_bucket_size"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.reduce_bucket_size": "big"}, 2, "reduce_bucket"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.allgather_bucket_size": -1}, 2, "allgather_buck"),
    ("deepspeed", {"zero_optimization.stage": 2, "zero_optimization.allgather_bucket_size": "big"}, 2, "allgather"),
    ("deepspeed", {"tensor_parallel.autotp_sise": 2}, 2, "tensor_parallel.autotp_sise"),
    ("deepspeed", {"compile.deepcompil": True}, 2, "compile.deepcompil"),
    ("deepspeed", {"sequence_parallel_size": 3}, 2, "sequence_parallel_size"),
    ("accelerate", {"num_process": 2}, 2, "num_process"),
    ("hf", {"eval_strategy": "sometimes"}, 2, "eval_strategy"),
    ("hf", {"lr_scheduler_type": "cosinus"}, 2, "lr_scheduler_type"),
    ("hf", {"optim": "adam_torch"}, 2, "optim"),
    ("megatron", {"--global-batch-size": 6}, 2, "--global-batch-size"),
    ("megatron", {"--num-layers": 3, "--pipeline-model-parallel-size": 2}, 2, "--num-layers"),
    ("megatron", {"--num-layers": 4, "--pipeline-model-parallel-size": 2,
                  "--account-for-loss-in-pipeline-split": True}, 2, "--num-layers"),
    ("megatron", {"--overlap-param-gather": True, "--overlap-grad-reduce": True}, 2, "--overlap-param-gather"),
    ("megatron", {"--overlap-param-gather": True, "--use-distributed-optimizer": True,
                  "--overlap-grad-reduce": None}, 2, "--overlap-param-gather"),
    ("megatron", {"--expert-model-parallel-size": 2}, 2, "--expert-model-parallel-size"),
    ("megatron", {"--expert-model-parallel-size": 2, "--num-experts": 3}, 2, "--expert-model-parallel-size"),
    ("automodel", {"distributed.strategy": "fsdp3"}, 2, "distributed.strategy"),
    ("automodel", {"distributed.pp_size": 2, "distributed.pipeline.pp_schedul": "1F1B"}, 2, "pipeline.pp_schedul"),
]  # fmt: skip
SOUND: dict[str, tuple[dict[str, Any], int]] = {
    "deepspeed": (_DS, 2),
    "accelerate": (_FSDP, 2),
    "hf": ({"per_device_train_batch_size": 2}, 2),
    "megatron": ({"--micro-batch-size": 2, "--num-layers": 4}, 2),
    "torchtitan": ({"training.local_batch_size": 2}, 2),
    "automodel": ({"step_scheduler.local_batch_size": 2}, 2),
}


def planted(sound: dict[str, Any], wrong: dict[str, Any]) -> dict[str, Any]:
    """A sound file with a mistake in it; None takes a key out."""
    return {key: value for key, value in (sound | wrong).items() if value is not None}


@pytest.mark.parametrize(("name", "wrong", "ranks", "field"), PLANTED + REFUSED_THERE)
def test_a_planted_mistake_is_named(name: str, wrong: dict[str, Any], ranks: int, field: str) -> None:
    form = find_target(name).format
    assert form is not None
    text = form.text(planted(SOUND[name][0], wrong))
    with pytest.raises(InputError) as refused:
        importing.read_text(form, text, ranks, {})
    assert field in refused.value.field
    assert refused.value.remedy


@pytest.mark.parametrize("name", SOUND)
def test_the_file_without_it_is_read(name: str) -> None:
    form, (document, ranks) = find_target(name).format, SOUND[name]
    assert form is not None
    assert importing.read_text(form, form.text(document), ranks, {}).config.parallel.dp == ranks


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", dict.fromkeys(row[0] for row in REFUSED_THERE))
def test_its_own_parser_refuses_them_too(name: str) -> None:
    """And takes what an export of ours says without them."""
    require(name)
    form = find_target(name).format
    assert form is not None
    rows = [row for row in REFUSED_THERE if row[0] == name]
    document = form.make_document(small(2, model__layers=4))
    files = [planted(document, wrong) for _, wrong, _, _ in rows]
    given = [{"text": form.text(one), "ranks": 2} for one in [document, *files]]
    sound, *said = problems_of(name, given)
    assert sound == ""
    assert [row[1] for row, words in zip(rows, said, strict=True) if not words] == []


def test_a_key_is_refused_with_its_nearest_and_the_version() -> None:
    (problem,) = documents.unknown_keys("hf", {"learning_rat": 1e-3})
    assert "learning_rate" in problem.remedy
    assert "transformers 5.23.0" in problem.remedy
