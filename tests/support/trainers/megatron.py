"""Megatron-LM, asked beside megatron-core: its arguments, and what it says against files of them.

What it understood has to be what a file says. It asks CUDA for a device: an H100 is stood in for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import shlex
import sys
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.support.trainers import torchtitan

ENVIRONMENT = torchtitan.ENVIRONMENT
WRONG = "--num-layer 2"
#: What it replaces by what follows from it.
_WORKED_OUT = {"pipeline_model_parallel_layout", "num_virtual_stages_per_pipeline_rank", "group_query_attention",
               "add_bias_linear", "swiglu", "cp_comm_type"}  # fmt: skip


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Of all arguments, which takes a while to make; before it comes what makes Megatron's first import possible."""
    import_module("tests.support.trainers.newer_python")
    from megatron.training.arguments import add_megatron_arguments

    return add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))


def known(used: list[str]) -> dict[str, Any]:
    """Its version, its arguments with their types, and usual values of those that are used."""
    actions = [action for action in parser()._actions if action.option_strings and action.dest != "help"]
    keys = {
        option: kind(action)
        for action in actions
        for option in action.option_strings
        if option.startswith("--")
    }
    usual = {
        option: action.default
        for action in actions
        for option in action.option_strings
        if option in used
        and isinstance(action.default, int | float | str)
        and not isinstance(action.default, bool)
    }
    return {"package": f"megatron-core {version('megatron-core')}", "keys": keys, "usual": usual}


def kind(action: argparse.Action) -> Any:
    """How its value is read."""
    if action.nargs == 0:
        return "flag"
    if action.nargs in ("+", "*"):
        return "many"
    if action.choices is not None and all(isinstance(one, str) for one in action.choices):
        return sorted(action.choices)
    name = getattr(action.type, "__name__", "str")
    return name if name in ("int", "float") else "any"


def problems(files: list[dict[str, Any]]) -> list[str]:
    """What it says against each."""
    import torch

    properties = SimpleNamespace(major=9, minor=0, name="NVIDIA H100", total_memory=80 * 2**30)
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        return [problem(one["text"], one["ranks"]) for one in files]


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
    made = parser()
    from megatron.training import arguments

    words = shlex.split(text)
    fsdp = "--use-megatron-fsdp" in words
    environment = {"WORLD_SIZE": str(ranks), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8" if fsdp else "1"}
    try:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]),
            mock.patch.object(arguments, "add_megatron_arguments", lambda _: made),
        ):
            parsed = arguments.parse_args()
            arguments.validate_args(parsed)
    except (Exception, SystemExit) as error:
        return repr(error)
    plain = made.parse_args(words)
    for action in made._actions:
        if not set(action.option_strings) & set(words) or action.dest in _WORKED_OUT:
            continue
        asked, found = getattr(plain, action.dest), getattr(parsed, action.dest, None)
        if found != asked and not (
            isinstance(asked, list) and len(asked) == 1 and found in (asked, asked[0])
        ):
            return f"{action.dest}: {found!r} is not {asked!r}"
    return ""
