"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what Automodel says against each, "" if nothing.

Its section ``distributed`` is parsed, its ``step_scheduler``, optimizer and schedule of the learning rate are built.
What was understood has to be what the file says.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from nemo_automodel.components.training.step_scheduler import StepScheduler
from nemo_automodel.recipes._dist_utils import parse_distributed_section
from nemo_automodel.recipes._typed_config import RecipeConfig
from torch.distributed.fsdp import CPUOffloadPolicy


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
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


if __name__ == "__main__":
    print(json.dumps([problem(one["text"], one["ranks"]) for one in json.load(sys.stdin)]))
