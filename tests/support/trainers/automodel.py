"""Automodel, asked beside nemo-automodel: the keys of its sections, and what it says against files.

Of a file its section ``distributed`` is parsed, its ``step_scheduler``, optimizer and schedule of the learning rate are
built. What was understood has to be what the file says.
"""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import yaml

from tests.support.trainers.packages import Environment

ENVIRONMENT = Environment(
    "automodel",
    ("transformers==5.23.0", "accelerate==1.15.0", "nemo-automodel==0.7.0"),
    alone=("nemo-automodel",),
)
WRONG = "distributed: {strategy: nothing, dp_size: 2}\nstep_scheduler: {}\n"


def known(used: list[str]) -> dict[str, Any]:
    """Its version and its keys."""
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

    names = {
        field.name
        for kind in (FSDP2Config, MegatronFSDPConfig, DDPConfig)
        for field in dataclasses.fields(kind)
    }
    names |= {"strategy", "activation_checkpointing", *_dist_utils._PARALLELISM_DEFAULTS}
    keys: dict[str, Any] = {f"distributed.{name}": "any" for name in names}
    keys |= {f"distributed.pipeline.{field.name}": "any" for field in dataclasses.fields(PipelineConfig)}
    keys |= {f"distributed.moe.{field.name}": "any" for field in dataclasses.fields(MoEParallelizerConfig)}
    keys |= {f"step_scheduler.{name}": "any" for name in inspect.signature(StepScheduler).parameters}
    keys["distributed.strategy"] = ["fsdp2", "megatron_fsdp", "ddp"]
    keys |= {f"distributed.offload_policy.{name}": "any" for name in ("pin_memory", "_target_")}
    keys |= {f"lr_scheduler.{field.name}": "any" for field in dataclasses.fields(LRSchedulerConfig)}
    optimizers = [set(inspect.signature(kind).parameters) for kind in (torch.optim.AdamW, torch.optim.SGD)]
    keys |= {f"optimizer.{name}": "any" for name in {"_target_"}.union(*optimizers) - {"params"}}
    keys |= {"clip_grad_norm.max_norm": "any", "clip_grad_norm.backend": "any"}
    return {"package": f"nemo-automodel {version('nemo-automodel')}", "keys": keys, "usual": {}}


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each."""
    return [problem(one["text"], one["ranks"]) for one in files]


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
    from nemo_automodel.components.training.step_scheduler import StepScheduler
    from nemo_automodel.recipes._dist_utils import parse_distributed_section
    from torch.distributed.fsdp import CPUOffloadPolicy

    given = yaml.safe_load(text)
    section, steps = given["distributed"], given["step_scheduler"]
    try:
        parsed = parse_distributed_section(section)
        built = StepScheduler(**steps, dp_size=section["dp_size"], dataloader=None)
    except Exception as error:
        return repr(error)
    sizes: dict[str, Any] = {name: parsed[name] for name in section if name.endswith("_size")}
    if (
        section["dp_size"] * sizes.get("tp_size", 1) * sizes.get("pp_size", 1) * sizes.get("cp_size", 1)
        != ranks
    ):
        return f"not {ranks} ranks"
    for name, value in section.items():
        if name in sizes:
            found = sizes[name]
        elif name == "strategy":
            found = type(parsed["strategy_config"]).__name__.lower().removesuffix("config")
        elif name == "pipeline":
            found = {key: getattr(parsed["pipeline_config"], key) for key in value}
        elif name == "activation_checkpointing":
            found = parsed[name]
        else:
            found = getattr(parsed["strategy_config"], name)
            found = {"pin_memory": found.pin_memory} if isinstance(found, CPUOffloadPolicy) else found
        if found != value:
            return f"{name}: {found!r} is not {value!r}"
    wrong = learned(given)
    return wrong or ("" if built.max_steps == steps["max_steps"] else f"max_steps: {built.max_steps}")


def learned(given: dict[str, Any]) -> str:
    """What of optimizer and learning rate was understood otherwise; both are built."""
    import torch
    from nemo_automodel.recipes._typed_config import RecipeConfig

    recipe = RecipeConfig(given)
    weight = torch.nn.Parameter(torch.zeros(2))
    kind = recipe.optimizer
    made = kind.factory([weight], **kind.kwargs)
    steps = SimpleNamespace(epoch_len=None, max_steps=given["step_scheduler"]["max_steps"])
    (schedule,) = recipe.lr_scheduler.build(made, steps)
    if f"torch.optim.{type(made).__name__}" != given["optimizer"]["_target_"]:
        return f"optimizer: {type(made)}"
    asked = {name: tuple(value) if isinstance(value, list) else value for name, value in given["optimizer"].items()
             if name not in ("_target_", "lr")} | {"lr_mult": 1.0}  # fmt: skip
    (group,) = made.param_groups
    found = {name: tuple(group[name]) if isinstance(group[name], list) else group[name] for name in asked}
    if found != asked or schedule.max_lr != given["optimizer"]["lr"]:
        return f"optimizer: {found} is not {asked}"
    for name, value in given["lr_scheduler"].items():
        if getattr(schedule, name) != value:
            return f"{name}: {getattr(schedule, name)} is not {value}"
    return ""
