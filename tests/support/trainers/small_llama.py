"""A small Llama with weights of a seed, its text, and what a rank tells of a training: the same in every trainer.

``SMALL_LLAMA`` in the environment has other sizes than the tests', as JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

VARIABLE = "SMALL_LLAMA"


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, of its text and of the training."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn_hidden: int = 128
    vocabulary: int = 256
    length: int = 16
    sequences: int = 64
    steps: int = 3


SHAPE = Shape(**json.loads(os.environ.get(VARIABLE, "{}")))
_ends = [time.perf_counter()]
#: Functions of a trainer, or of what it asks, that are not theirs here: it was written for GPUs, or for a newer Python.
REPLACED = set[str]()


def text() -> torch.Tensor:
    """Sequences [sequences, length] of a seed."""
    shape = SHAPE.sequences, SHAPE.length
    return torch.randint(0, SHAPE.vocabulary, shape, generator=torch.Generator().manual_seed(1))


def llama() -> nn.Module:
    """transformers' own, of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=SHAPE.vocabulary, hidden_size=SHAPE.hidden, intermediate_size=SHAPE.ffn_hidden,
                        num_hidden_layers=SHAPE.layers, num_attention_heads=SHAPE.heads,
                        num_key_value_heads=SHAPE.kv_heads, max_position_embeddings=max(64, SHAPE.length))  # fmt: skip
    return LlamaForCausalLM(shape)


def sharing(parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    """Of the largest parameter: its values in all, and those on this rank; and the number of all parameters."""
    parameters = list(parameters)
    largest = max(parameters, key=lambda one: one.numel())
    local = getattr(largest, "to_local", None)
    held = local().numel() if local is not None else largest.numel()
    return {"whole": largest.numel(), "held": held,
            "parameters": sum(one.numel() for one in parameters)}  # fmt: skip


def step_done() -> None:
    """An optimizer step was taken."""
    _ends.append(time.perf_counter())


def tell(**facts: Any) -> None:
    """One line of each rank, with its number and the seconds of its steps; the first has all that came before."""
    seconds = [after - before for before, after in pairwise(_ends)]
    whole = {"rank": int(os.environ.get("RANK", "0")), "seconds": seconds, "replaced": len(REPLACED)}
    told = json.dumps(whole | facts)
    os.write(1, f"\nTOLD {told}\n".encode())  # at once: ranks share a pipe


def note(**facts: Any) -> None:
    """What a rank sees of its training, in the folder of the trial that it is, where it may be killed at any step."""
    if folder := os.environ.get("WORKBENCH_FOLDER"):
        Path(folder, f"seen-{os.environ.get('RANK', '0')}.json").write_text(
            json.dumps(facts), encoding="utf-8"
        )


def replace(owner: object, name: str, function: object) -> None:
    """Put another function in the place of one, and count it."""
    setattr(owner, name, function)
    REPLACED.add(f"{getattr(owner, '__name__', owner)}.{name}")


def replace_backend() -> None:
    """accelerate takes gloo for one way of training on CPUs alone: this is the one function that is replaced, so that
    FSDP2 has it, too.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    replace(PartialState, "_prepare_backend", lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU))
