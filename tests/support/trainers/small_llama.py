"""A small Llama with weights of a seed, its text, and what a rank tells of a training: the same in every trainer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

VOCABULARY, LENGTH, SEQUENCES = 256, 16, 64


def text() -> torch.Tensor:
    """Sequences [64, 16] of a seed."""
    return torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))


def llama() -> nn.Module:
    """transformers' own, of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    return LlamaForCausalLM(shape)


def sharing(parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    """Of the largest parameter: its values in all, and those on this rank."""
    largest = max(parameters, key=lambda one: one.numel())
    local = getattr(largest, "to_local", None)
    held = local().numel() if local is not None else largest.numel()
    return {"whole": largest.numel(), "held": held}


def tell(**facts: Any) -> None:
    """One line of each rank, with its number."""
    told = json.dumps({"rank": int(os.environ.get("RANK", "0")), **facts})
    os.write(1, f"\nTOLD {told}\n".encode())  # at once: ranks share a pipe


def replace_backend() -> None:
    """accelerate takes gloo for one way of training on CPUs alone: this is the one function that is replaced, so that
    FSDP2 has it, too.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
