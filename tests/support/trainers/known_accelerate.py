"""Prints the keys of accelerate's YAML file, as ``known_keys.json`` has them; run beside accelerate."""

from __future__ import annotations

import dataclasses
import json

import accelerate
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType

#: Sections, and what the launcher's options for them begin with.
SECTIONS = {"fsdp_config": "fsdp_", "parallelism_config": "parallelism_config_", "dynamo_config": "dynamo_",
            "megatron_lm_config": "megatron_lm_"}  # fmt: skip
TYPES = {"num_processes": "int", "num_machines": "int", "machine_rank": "int", "use_cpu": "bool", "debug": "bool",
         "distributed_type": [kind.value for kind in DistributedType]}  # fmt: skip

if __name__ == "__main__":
    names = [field.name for field in dataclasses.fields(ClusterConfig)]
    keys = {name: TYPES.get(name, "any") for name in names} | {"dynamo_backend": "any", "fp16": "any"}
    groups = {
        group.title: [action.dest for action in group._group_actions]
        for group in launch_command_parser()._action_groups
    }
    options = [name for found in groups.values() for name in found]
    for section, prefix in SECTIONS.items():
        keys |= {f"{section}.{name}": "any" for name in options if name.startswith(prefix)}
        if section in (
            "fsdp_config",
            "dynamo_config",
        ):  # the launcher puts the prefix before names without it
            keys |= {
                f"{section}.{name.removeprefix(prefix)}": "any" for name in options if name.startswith(prefix)
            }
    (deepspeed,) = (found for title, found in groups.items() if title and "DeepSpeed" in title)
    keys |= {f"deepspeed_config.{name}": "any" for name in deepspeed}
    keys["fsdp_config.fsdp_version"] = "any"
    usual = {"mixed_precision": "no"}
    print(json.dumps({"package": f"accelerate {accelerate.__version__}", "keys": keys, "usual": usual}))
