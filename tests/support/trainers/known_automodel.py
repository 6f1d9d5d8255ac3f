"""Prints the keys of Automodel's sections, as ``known_keys.json`` has them; run beside nemo-automodel."""

from __future__ import annotations

import dataclasses
import inspect
import json
from importlib.metadata import version

import torch
from nemo_automodel.components.distributed.config import (
    DDPConfig,
    FSDP2Config,
    MegatronFSDPConfig,
    MoEParallelizerConfig,
)
from nemo_automodel.components.distributed.pipelining.config import PipelineConfig
from nemo_automodel.components.optim.optimizer import LRSchedulerConfig
from nemo_automodel.components.training.step_scheduler import StepScheduler
from nemo_automodel.recipes import _dist_utils

if __name__ == "__main__":
    names = {
        field.name
        for kind in (FSDP2Config, MegatronFSDPConfig, DDPConfig)
        for field in dataclasses.fields(kind)
    }
    names |= {"strategy", "activation_checkpointing", *_dist_utils._PARALLELISM_DEFAULTS}
    keys = {f"distributed.{name}": "any" for name in names}
    keys |= {f"distributed.pipeline.{field.name}": "any" for field in dataclasses.fields(PipelineConfig)}
    keys |= {f"distributed.moe.{field.name}": "any" for field in dataclasses.fields(MoEParallelizerConfig)}
    keys |= {f"step_scheduler.{name}": "any" for name in inspect.signature(StepScheduler).parameters}
    keys["distributed.strategy"] = ["fsdp2", "megatron_fsdp", "ddp"]  # type: ignore[assignment]
    keys |= {f"distributed.offload_policy.{name}": "any" for name in ("pin_memory", "_target_")}
    keys |= {f"lr_scheduler.{field.name}": "any" for field in dataclasses.fields(LRSchedulerConfig)}
    optimizers = [set(inspect.signature(kind).parameters) for kind in (torch.optim.AdamW, torch.optim.SGD)]
    keys |= {f"optimizer.{name}": "any" for name in {"_target_"}.union(*optimizers) - {"params"}}
    keys |= {"clip_grad_norm.max_norm": "any", "clip_grad_norm.backend": "any"}
    print(json.dumps({"package": f"nemo-automodel {version('nemo-automodel')}", "keys": keys, "usual": {}}))
