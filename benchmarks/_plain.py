"""A decoder and its training loops as one writes them with torch alone: the engine's reference and its peers.

It imports nothing of the engine and shares no code with its model. Parameters have the same names, so that both
can start from the same tensors. Layout is [batch, sequence, hidden] throughout.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Sizes:
    """Of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocabulary: int


@dataclass(frozen=True)
class Recipe:
    """What a loop does with its gradients, and how many sequences it takes at once."""

    micro_batch: int
    learning_rate: float
    weight_decay: float
    clip_norm: float | None
    learning_rate_warmup: int = 0


class Attention(nn.Module):
    """Causal attention with rotary positions; several query heads may share a key head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim = sizes.hidden // sizes.heads
        kv_width = sizes.kv_heads * self.head_dim
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.value = nn.Linear(sizes.hidden, kv_width, bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[batch, sequence, hidden] -> the same."""
        batch, sequence, _ = x.shape
        shape = (batch, sequence, -1, self.head_dim)
        query = rotate(self.query(x).view(shape).transpose(1, 2), cosine, sine)
        key = rotate(self.key(x).view(shape).transpose(1, 2), cosine, sine)
        value = self.value(x).view(shape).transpose(1, 2)
        shared = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.ffn_hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.ffn_hidden, bias=False)
        self.down = nn.Linear(sizes.ffn_hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, hidden] -> the same."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """A layer with norms in front of its two halves."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.attention = Attention(sizes)
        self.feed_forward_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.feed_forward = FeedForward(sizes)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[batch, sequence, hidden] -> the same."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class PlainDecoder(nn.Module):
    """Tokens [batch, sequence] -> logits [batch, sequence, vocabulary]."""

    def __init__(self, sizes: Sizes, sequence_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        # Plain attributes: DDP would broadcast buffers in every step.
        self.cosine, self.sine = angles(sequence_length, sizes.hidden // sizes.heads)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(x))
        return logits


def angles(sequence_length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [sequence, head_dim / 2] of rotary positions with base 10,000."""
    rates = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    table = torch.arange(sequence_length).float()[:, None] * rates
    return table.cos(), table.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the two halves of [batch, heads, sequence, head_dim] against each other by position."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


class Loop:
    """A training loop in one process; the others differ in what they do around a micro-batch."""

    def __init__(self, model: Any, recipe: Recipe) -> None:
        self.model, self.recipe = model, recipe
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        norms = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        options: list[dict[str, Any]] = [{"params": matrices}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            options, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )
        warmup = max(1, recipe.learning_rate_warmup)
        self.rate = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1 / warmup, 1.0, warmup - 1)

    def step(self, tokens: Tensor) -> tuple[float, float]:
        """Train on int64 [sequences, length + 1]; returns the mean loss and the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        total, parts = torch.zeros(()), tokens.split(self.recipe.micro_batch)
        for number, part in enumerate(parts, 1):
            with self.around(last=number == len(parts)):
                logits = self.model(part[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / len(parts)
                loss.backward()
            total += whole(loss.detach())
        most = self.recipe.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), most)
        self.optimizer.step()
        self.rate.step()
        return total.item(), whole(norm).item()

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch."""
        return nullcontext()


class DataParallelLoop(Loop):
    """DDP; gradients are averaged in the last micro-batch."""

    def __init__(self, model: nn.Module, recipe: Recipe, group: ProcessGroup) -> None:
        wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        super().__init__(wrapped, recipe)

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """Without sending, except for the last."""
        context: AbstractContextManager[Any] = nullcontext() if last else self.model.no_sync()
        return context


class FullyShardedLoop(Loop):
    """FSDP2 with a group per block; gradients are scattered in the last micro-batch."""

    def __init__(self, model: PlainDecoder, recipe: Recipe, mesh: DeviceMesh) -> None:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        super().__init__(fully_shard(model, mesh=mesh), recipe)

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """Say whether it is the last."""
        self.model.set_is_last_backward(last)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()


class TensorParallelLoop(Loop):
    """``parallelize_module`` with sequence-parallel norms and a loss over split logits."""

    def __init__(self, model: PlainDecoder, recipe: Recipe, mesh: DeviceMesh) -> None:
        ends = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, mesh, ends)
        for block in model.blocks:
            parallelize_module(block, mesh, self.block_plan())
        super().__init__(model, recipe)

    @staticmethod
    def block_plan() -> dict[str, Any]:
        """How a block is split: sequence between its halves, heads and width inside them."""
        split, whole_sequence = Shard(1), Replicate()
        return {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(split, None, None), desired_input_layouts=(whole_sequence, None, None)
            ),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.output": RowwiseParallel(output_layouts=split),
            "feed_forward_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(split,), desired_input_layouts=(whole_sequence,)
            ),
            "feed_forward.gate": ColwiseParallel(),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(output_layouts=split),
        }

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """Cross entropy over logits that are split along the vocabulary, forward and backward."""
        context: AbstractContextManager[Any] = loss_parallel()
        return context


def whole(value: Tensor) -> Tensor:
    """The full tensor of one that may be distributed."""
    return value.full_tensor() if isinstance(value, DTensor) else value
