"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what Automodel says against each, "" if nothing.

Its section ``distributed`` is parsed, its ``step_scheduler`` built. What was understood has to be what the file says.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml
from nemo_automodel.components.training.step_scheduler import StepScheduler
from nemo_automodel.recipes._dist_utils import parse_distributed_section
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
    return "" if built.max_steps == steps["max_steps"] else f"max_steps: {built.max_steps}"


if __name__ == "__main__":
    print(json.dumps([problem(one["text"], one["ranks"]) for one in json.load(sys.stdin)]))
