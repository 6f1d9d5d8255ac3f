"""Prints the keys of DeepSpeed's JSON file, as ``known_keys.json`` has them; run beside deepspeed.

Those of its pydantic sections are their fields. Of what it reads by name, the names that it asks a dictionary for are
noted while it reads one.
"""

from __future__ import annotations

import importlib
import json
import logging
from typing import Any

import deepspeed
from deepspeed.compile.config import CompileConfig
from deepspeed.module_inject.auto_ep_config import AutoEPConfig
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)

SECTIONS: dict[str, Any] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "tensor_parallel": TPTrainingConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "compile": CompileConfig,
}
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
    found: dict[str, str] = {}
    for section, asked in names().items():
        found |= {f"{section}.{name}" if section else name: "any" for name in asked}
    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            found |= {f"{section}.{alias}": "any" for alias in (name, field.alias) if alias}
    found |= {f"pipeline.{name}": "any" for name in PIPELINE}
    import dataclasses

    found |= {f"expert_parallel.{field.name}": "any" for field in dataclasses.fields(AutoEPConfig)}
    found |= dict.fromkeys((*OTHER, "optimizer", "scheduler", "torch_autocast.enabled", "torch_autocast.dtype",
                            "torch_autocast.lower_precision_safe_modules", *SECTIONS), "any")  # fmt: skip
    return found | TYPES


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    usual = {"gradient_clipping": 0.0, "zero_optimization.stage": 0}
    print(json.dumps({"package": f"deepspeed {deepspeed.__version__}", "keys": keys(), "usual": usual}))
