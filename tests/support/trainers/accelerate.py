"""accelerate's launcher, asked beside accelerate: the keys of its YAML file, and what it says against files.

It reads a file and prepares the environment of ranks; that has to say what the file says.
"""

from __future__ import annotations

import dataclasses
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from tests.support.trainers import hf

ENVIRONMENT = hf.ENVIRONMENT
WRONG = "distributed_type: FSDP\nnum_process: 2\n"
#: Sections, and what the launcher's options for them begin with.
SECTIONS = {"fsdp_config": "fsdp_", "parallelism_config": "parallelism_config_", "dynamo_config": "dynamo_",
            "megatron_lm_config": "megatron_lm_"}  # fmt: skip
#: Those of which the launcher puts what they begin with before names without it.
SHORTENED = ("fsdp_config", "dynamo_config")


def known(used: list[str]) -> dict[str, Any]:
    """Its version, its keys with their types, and their usual values."""
    import accelerate
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    types = _types()
    names = [field.name for field in dataclasses.fields(ClusterConfig)]
    keys = {name: types.get(name, "any") for name in names} | {"dynamo_backend": "any", "fp16": "any"}
    groups = {
        group.title: [action.dest for action in group._group_actions]
        for group in launch_command_parser()._action_groups
    }
    options = [name for found in groups.values() for name in found]
    for section, prefix in SECTIONS.items():
        own = [name for name in options if name.startswith(prefix)]
        keys |= {f"{section}.{name}": "any" for name in own}
        if section in SHORTENED:
            keys |= {f"{section}.{name.removeprefix(prefix)}": "any" for name in own}
    (deepspeed,) = (found for title, found in groups.items() if title and "DeepSpeed" in title)
    keys |= {f"deepspeed_config.{name}": "any" for name in deepspeed}
    keys["fsdp_config.fsdp_version"] = "any"
    return {
        "package": f"accelerate {accelerate.__version__}",
        "keys": keys,
        "usual": {"mixed_precision": "no"},
    }


def _types() -> dict[str, Any]:
    from accelerate.utils import DistributedType

    plain = {
        "num_processes": "int",
        "num_machines": "int",
        "machine_rank": "int",
        "use_cpu": "bool",
        "debug": "bool",
    }
    return plain | {"distributed_type": [kind.value for kind in DistributedType]}


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each; eight GPUs are stood in for."""
    import torch

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(torch.cuda, "device_count", lambda: 8):
        return [problem(one["text"], one["ranks"], Path(folder)) for one in files]


def launched(file: Path) -> tuple[Namespace, dict[str, str]]:
    """The launcher's arguments and the environment that it gives ranks."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    parser = launch_command_parser()
    args, _, _ = _validate_launch_command(parser.parse_args(["--config_file", str(file), "train.py"]))
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        return args, prepare_deepspeed_cmd_env(args)[1]
    if args.multi_gpu or args.use_fsdp:
        return args, prepare_multi_gpu_env(args)
    return args, prepare_simple_launcher_cmd_env(args)[1]


def problem(text: str, ranks: int, folder: Path) -> str:
    """What is wrong with a file."""
    file = folder / "accelerate.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        args, environment = launched(file)
    except Exception as error:
        return repr(error)
    if args.num_processes != ranks:
        return f"num_processes: {args.num_processes}"
    for name, value in _asked(yaml.safe_load(text)).items():
        found = environment.get(name)
        if str(found).lower() != str(value).lower():
            return f"{name}: {found} is not {value}"
    return ""


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """The variables that a file asks for."""
    from accelerate.parallelism_config import ParallelismConfig

    asked: dict[str, Any] = {"ACCELERATE_MIXED_PRECISION": given["mixed_precision"]}
    for name, value in given.get("fsdp_config", {}).items():
        asked[name.upper()] = value
    sizes = given.get("parallelism_config", {})
    asked |= {name.upper(): value for name, value in sizes.items()}
    if sizes:
        names = {name.removeprefix("parallelism_config_"): value for name, value in sizes.items()}
        ParallelismConfig(**names)
    if "deepspeed_config" in given:
        section = given["deepspeed_config"]
        asked["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = section["zero_stage"]
        asked["ACCELERATE_USE_DEEPSPEED"] = "true"
        asked["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = section["gradient_accumulation_steps"]
    if given["distributed_type"] == "FSDP":
        asked["ACCELERATE_USE_FSDP"] = "true"
    if "dynamo_config" in given:
        asked["ACCELERATE_DYNAMO_BACKEND"] = given["dynamo_config"]["dynamo_backend"]
    return asked
