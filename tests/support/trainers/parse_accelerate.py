"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what accelerate says against each, "" if nothing.

Its launcher reads the file and prepares the environment of ranks; that has to say what the file says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)


def launched(file: Path) -> tuple[Namespace, dict[str, str]]:
    """The launcher's arguments and the environment that it gives ranks."""
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
    given = yaml.safe_load(text)
    if args.num_processes != ranks:
        return f"num_processes: {args.num_processes}"
    asked: dict[str, Any] = {"ACCELERATE_MIXED_PRECISION": given["mixed_precision"]}
    for name, value in given.get("fsdp_config", {}).items():
        asked[name.upper()] = value
    sizes = given.get("parallelism_config", {})
    asked |= {name.upper(): value for name, value in sizes.items()}
    if sizes:
        names = {name.removeprefix("parallelism_config_"): value for name, value in sizes.items()}
        ParallelismConfig(**names)
    if "deepspeed_config" in given:
        asked["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = given["deepspeed_config"]["zero_stage"]
        asked["ACCELERATE_USE_DEEPSPEED"] = "true"
        asked["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = given["deepspeed_config"][
            "gradient_accumulation_steps"
        ]
    if given["distributed_type"] == "FSDP":
        asked["ACCELERATE_USE_FSDP"] = "true"
    if "dynamo_config" in given:
        asked["ACCELERATE_DYNAMO_BACKEND"] = given["dynamo_config"]["dynamo_backend"]
    for name, value in asked.items():
        found = environment.get(name)
        if str(found).lower() != str(value).lower():
            return f"{name}: {found} is not {value}"
    return ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(torch.cuda, "device_count", lambda: 8):
        found = [problem(one["text"], one["ranks"], Path(folder)) for one in json.load(sys.stdin)]
    print(json.dumps(found))
