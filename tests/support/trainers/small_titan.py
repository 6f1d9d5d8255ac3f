"""What torchtitan trains in tests: a recipe with a small Llama of its own parts and a text of a seed; and what is
replaced so that it runs on CPUs. Imported before anything else of torchtitan.

``replace_device`` replaces what it asks of its device: torchtitan 0.3.0 takes its device for "cuda" where there is no
accelerator. Its attention for language models has no backward on a CPU, so the model has its attention for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.support.trainers import small_llama

SHAPE = small_llama.SHAPE


def replace_device() -> None:
    """Two functions of torch that torchtitan asks for its device, six of its CPU that it then asks, and one of a newer
    torch.
    """
    replace = small_llama.replace
    replace(torch._utils, "_get_available_device_type", lambda: "cpu")
    replace(torch._utils, "_get_device_module", lambda _: torch.cpu)
    replace(torch.cpu, "get_device_name", lambda _: "CPU")
    replace(torch.cpu, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**34))
    replace(torch.cpu, "current_device", lambda: 0)
    replace(torch.cpu, "memory_stats", lambda _: {})
    replace(torch.cpu, "reset_peak_memory_stats", lambda: None)
    replace(torch.cpu, "empty_cache", lambda: None)
    if not hasattr(torch.distributed, "set_timeout"):
        replace(torch.distributed, "set_timeout", lambda timeout, group: None)


replace_device()

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # noqa: E402
from torchtitan.models.llama3 import model_registry, parallelize_llama  # noqa: E402, F401
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


class Rows(BaseDataLoader):
    """The seed's text: each data rank takes its micro-batches in turn."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """No settings."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any
    ) -> None:
        self._every, self._rank, self._micro = dp_world_size * local_batch_size, dp_rank, local_batch_size

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        rows = small_llama.text()
        for at in range(self._rank * self._micro, len(rows), self._every):
            batch = rows[at : at + self._micro]
            labels = batch.roll(-1, 1)
            labels[:, -1] = IGNORE_INDEX
            yield {"input": batch}, labels

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class NoTokenizer(BaseTokenizer):
    """The text is tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No settings."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        """Never asked."""
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        """Never asked."""
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        """Of the model."""
        return SHAPE.vocabulary


_FIRST = {"weight": partial(nn.init.normal_, std=0.02)}
_ONES = {"weight": nn.init.ones_}


def _norm() -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=SHAPE.hidden, param_init=_ONES)


def _block() -> Llama3TransformerBlock.Config:
    rope = ComplexRoPE.Config(dim=SHAPE.hidden // SHAPE.heads, max_seq_len=SHAPE.length, theta=10000.0)
    attention = make_gqa_config(
        dim=SHAPE.hidden, n_heads=SHAPE.heads, n_kv_heads=SHAPE.kv_heads, wqkv_param_init=_FIRST, wo_param_init=_FIRST,
        inner_attention=ScaledDotProductAttention.Config(), fuse_qkv=False, rope=rope)  # fmt: skip
    feed_forward = make_ffn_config(
        dim=SHAPE.hidden, hidden_dim=SHAPE.ffn_hidden, w1_param_init=_FIRST, w2w3_param_init=_FIRST
    )
    return Llama3TransformerBlock.Config(
        attention_norm=_norm(), ffn_norm=_norm(), attention=attention, feed_forward=feed_forward
    )


def small() -> Trainer.Config:
    """The recipe that an export changes."""
    spec = model_registry("debugmodel")
    vocabulary = SHAPE.vocabulary
    spec.model = Llama3Model.Config(
        dim=SHAPE.hidden,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=SHAPE.hidden, param_init=_FIRST
        ),
        norm=_norm(),
        lm_head=Linear.Config(in_features=SHAPE.hidden, out_features=vocabulary, param_init=_FIRST),
        layers=[_block() for _ in range(SHAPE.layers)],
    )
    return Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=vocabulary),
        dataloader=Rows.Config(),
        tokenizer=NoTokenizer.Config(),
        metrics=MetricsProcessor.Config(log_freq=1),
        activation_checkpoint=None,
    )
