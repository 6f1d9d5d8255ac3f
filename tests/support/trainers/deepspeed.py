"""DeepSpeed, asked beside deepspeed: the keys of its JSON file, and what it says against files.

Keys of its pydantic sections are their fields. Of what it reads by name, the names that it asks a dictionary for are
noted while it reads one. What it understood has to be what a file says. Process groups are stood in for: the number of
ranks is all that is asked of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
from types import SimpleNamespace
from typing import Any

from tests.support.trainers.packages import Environment

ENVIRONMENT = Environment(
    "deepspeed",
    ("deepspeed==0.19.8",),
    build="from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)",
)
WRONG = '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}'
#: Of a dictionary that is read whole: its names are those of its defaults.
PIPELINE = ("stages", "partition", "seed_layers", "activation_checkpoint_interval", "pipe_partitioned",
            "grad_partitioned", "use_reentrant")  # fmt: skip
#: Sections that other parts of DeepSpeed read later, or that pydantic checks by itself.
OTHER = ("comms_logger", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "aio",
         "autotuning",
         "elasticity", "compression_training", "data_efficiency", "curriculum_learning", "hybrid_engine",
         "sparse_attention", "nebula", "weight_quantization", "eigenvalue", "progressive_layer_drop", "amp",
         "sequence_parallel_size", "zero_allow_untested_optimizer", "gradient_accumulation_dtype", "timers",
         "use_data_before_expert_parallelism", "data_types", "checkpoint", "dump_state", "monitor_config")  # fmt: skip
TYPES = {"train_batch_size": "int", "train_micro_batch_size_per_gpu": "int", "gradient_accumulation_steps": "int",
         "gradient_clipping": "float", "zero_optimization.stage": "int", "zero_optimization.reduce_bucket_size": "int",
         "bf16.enabled": "any", "sequence_parallel_size": "int", "tensor_parallel.autotp_size": "int"}  # fmt: skip
TYPES |= {
    f"zero_optimization.{name}_bucket_size": "int" for name in ("allgather", "prefetch", "stage3_prefetch")
}
#: Its names of optimizers; one of torch's has torch's.
_NAMES = {"adamw": "AdamW", "lamb": "Lamb", "SGD": "SGD"}


def known(used: list[str]) -> dict[str, Any]:
    """Its version, its keys with their types, and their usual values."""
    import deepspeed
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT
    from deepspeed.runtime.zero.config import ZeroStageEnum

    logging.disable(logging.CRITICAL)
    usual = {
        "gradient_clipping": GRADIENT_CLIPPING_DEFAULT,
        "zero_optimization.stage": ZeroStageEnum.disabled.value,
    }
    return {"package": f"deepspeed {deepspeed.__version__}", "keys": keys(), "usual": usual}


def _sections() -> dict[str, Any]:
    from deepspeed.compile.config import CompileConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "tensor_parallel": TPTrainingConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "compile": CompileConfig,
    }


class Noting(dict[str, Any]):
    """A dictionary that notes what it is asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


def names() -> dict[str, set[str]]:
    """By section: what reading a file asks for."""
    from deepspeed.runtime.config import DeepSpeedConfig

    top = Noting({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}})
    config = object.__new__(DeepSpeedConfig)
    config.world_size, config.global_rank, config.mesh_device, config._param_dict = 1, 0, None, top
    config._initialize_params(top)
    checkpointing = Noting()
    holder = {"activation_checkpointing": checkpointing}
    importlib.import_module(
        "deepspeed.runtime.activation_checkpointing.config"
    ).DeepSpeedActivationCheckpointingConfig(holder)
    return {"": top.asked, "activation_checkpointing": checkpointing.asked}


def keys() -> dict[str, str]:
    """With their types."""
    from deepspeed.module_inject.auto_ep_config import AutoEPConfig

    sections = _sections()
    found: dict[str, str] = {}
    for section, asked in names().items():
        found |= {f"{section}.{name}" if section else name: "any" for name in asked}
    for section, model in sections.items():
        for name, field in model.model_fields.items():
            found |= {f"{section}.{alias}": "any" for alias in (name, field.alias) if alias}
    found |= {f"pipeline.{name}": "any" for name in PIPELINE}
    found |= {f"expert_parallel.{field.name}": "any" for field in dataclasses.fields(AutoEPConfig)}
    found |= dict.fromkeys((*OTHER, "optimizer", "scheduler", "torch_autocast.enabled", "torch_autocast.dtype",
                            "torch_autocast.lower_precision_safe_modules", *sections), "any")  # fmt: skip
    return found | TYPES


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each."""
    from deepspeed.runtime import config as code

    logging.disable(logging.CRITICAL)
    code.dist.get_rank = lambda *_: 0
    return [problem(one["text"], one["ranks"]) for one in files]


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
    from deepspeed.runtime.config import DeepSpeedConfig

    given = json.loads(text)
    tp = given.get("tensor_parallel", {}).get("autotp_size", 1)
    cp = given.get("sequence_parallel_size", 1)
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: ranks // (tp * cp))
    try:
        parsed = DeepSpeedConfig(given, mpu)
    except Exception as error:
        return repr(error)
    found: dict[str, Any] = {
        "train_batch_size": parsed.train_batch_size,
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "gradient_clipping": parsed.gradient_clipping,
        "zero_optimization": parsed.zero_config.model_dump(by_alias=True, mode="json"),
        "bf16": {"enabled": parsed.bfloat16_config.enabled},
        "torch_autocast": {"enabled": parsed.torch_autocast_enabled,
                           "dtype": str(parsed.torch_autocast_dtype).removeprefix("torch.")},
        "optimizer": {"type": _NAMES.get(str(parsed.optimizer_name)), "params": parsed.optimizer_params},
        "scheduler": {"type": parsed.scheduler_name, "params": parsed.scheduler_params},
        "communication_data_type": {"torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(
            str(parsed.communication_data_type)),
        "tensor_parallel": {"autotp_size": parsed.tensor_parallel_config.autotp_size},
        "sequence_parallel_size": cp,
        "zero_allow_untested_optimizer": parsed.zero_allow_untested_optimizer,
    }  # fmt: skip
    for key, value in given.items():
        if isinstance(value, dict):
            wrong = {name: one for name, one in value.items() if not _within(one, found[key].get(name))}
        else:
            wrong = {} if found[key] == value else {key: found[key]}
        if wrong:
            return f"{key}: {found[key]!r} is not {value!r}"
    return ""


def _within(given: object, found: object) -> bool:
    if isinstance(given, dict) and isinstance(found, dict):
        return all(_within(value, found.get(key)) for key, value in given.items())
    return given == found
