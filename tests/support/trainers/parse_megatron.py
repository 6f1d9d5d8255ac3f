"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what Megatron-LM says against each, "" if nothing.

What it understood has to be what the file says. It asks CUDA for a device: an H100 is stood in for.
"""

# ruff: noqa: I001  # what makes the first import of Megatron possible stands before it
from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from types import SimpleNamespace
from unittest import mock

import torch

from tests.support.trainers.known_megatron import parser
from megatron.training import arguments

#: Its own, which takes a while to make.
MADE = parser()


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
    words = shlex.split(text)
    fsdp = "--use-megatron-fsdp" in words
    environment = {"WORLD_SIZE": str(ranks), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8" if fsdp else "1"}
    try:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]),
            mock.patch.object(arguments, "add_megatron_arguments", lambda _: MADE),
        ):
            parsed = arguments.parse_args()
            arguments.validate_args(parsed)
    except (Exception, SystemExit) as error:
        return repr(error)
    plain = MADE.parse_args(words)
    for action in MADE._actions:
        if not set(action.option_strings) & set(words) or action.dest in _WORKED_OUT:
            continue
        asked, found = getattr(plain, action.dest), getattr(parsed, action.dest, None)
        if found != asked and not (
            isinstance(asked, list) and len(asked) == 1 and found in (asked, asked[0])
        ):
            return f"{action.dest}: {found!r} is not {asked!r}"
    return ""


#: What it replaces by what follows from it.
_WORKED_OUT = {"pipeline_model_parallel_layout", "num_virtual_stages_per_pipeline_rank", "group_query_attention",
               "add_bias_linear", "swiglu", "cp_comm_type"}  # fmt: skip

if __name__ == "__main__":
    properties = SimpleNamespace(major=9, minor=0, name="NVIDIA H100", total_memory=80 * 2**30)
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        found = [problem(one["text"], one["ranks"]) for one in json.load(sys.stdin)]
    print(json.dumps(found))
