"""Causal attention with grouped queries (arXiv 2305.13245) by torch's own kernels, whole or block by block.

Softmax over many keys follows from blocks of them, given each block's result and log-sum-exp (arXiv 2205.14135).
torch's fused kernels compute both, but only its private operators return them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from profilers.torch_private import attention_kernel

_HALF = (torch.bfloat16, torch.float16)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """[batch, heads, sequence, head_dim] with [batch, kv_heads, sequence, head_dim]; the result is like ``query``.
    ``visible`` (bool [batch, 1, sequence, sequence]) says which keys a query sees, in place of all up to its own.

    A fused kernel reads grouped key heads in place: no copies of them, neither now nor kept for the backward pass.
    """
    kv_heads = key.shape[1]
    causal = visible is None
    if query.shape[1] == kv_heads:
        return F.scaled_dot_product_attention(query, key, value, visible, is_causal=causal)
    if takes_groups(query.device.type, query.dtype):
        return F.scaled_dot_product_attention(query, key, value, visible, is_causal=causal, enable_gqa=True)
    query = fold(query, kv_heads)
    key, value = (expand_heads(fold(x, kv_heads), query) for x in (key, value))
    if visible is not None:
        visible = visible.repeat_interleave(kv_heads, 0)
    mixed = F.scaled_dot_product_attention(query, key, value, visible, is_causal=causal)
    heads: Tensor = mixed.unflatten(0, (-1, kv_heads)).flatten(1, 2)
    return heads


def takes_groups(device: str, dtype: torch.dtype) -> bool:
    """Whether torch's fastest kernel takes fewer key heads than query heads and is exact with them.

    The CPU's sums the gradients of a group in the inputs' dtype: in bf16 that doubles their error for 8 heads.
    """
    return dtype in _HALF if device == "cuda" else device == "cpu" and dtype not in _HALF


def fold(x: Tensor, kv_heads: int) -> Tensor:
    """[batch, heads, ...] -> [batch * kv_heads, heads / kv_heads, ...]: a key head beside the queries that share it."""
    folded: Tensor = x.unflatten(1, (kv_heads, -1)).flatten(0, 1)
    return folded


def expand_heads(x: Tensor, query: Tensor) -> Tensor:
    """One key head [n, 1, keys, head_dim] as many times as there are query heads; a view."""
    return x.expand(-1, query.shape[1], -1, -1)


_CPU, _CPU_BACKWARD = attention_kernel("flash_attention_for_cpu")
_FLASH, _FLASH_BACKWARD = attention_kernel("flash_attention")
_EFFICIENT, _EFFICIENT_BACKWARD = attention_kernel("efficient_attention")
#: Rows to which the memory-efficient kernel pads its log-sum-exp.
_EFFICIENT_ROWS = 32

Forward = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor]]


class BlockKernel(NamedTuple):
    """Attention to one block of keys, for folded heads: queries [n, group, queries, head_dim], keys [n, 1, keys, ...].

    ``forward(query, key, value, causal)`` gives the result and the log-sum-exp [n, group, queries], fp32 or wider.
    ``backward(gradient, query, key, value, out, log_sum, causal)`` takes the result and log-sum-exp over *all*
    keys and gives this block's part of the three gradients. ``grouped``: it takes one key head for several queries.
    """

    forward: Forward
    backward: Backward
    grouped: bool

    def attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Result [n, group, queries, head_dim] and log-sum-exp [n, group, queries]."""
        if not self.grouped:
            key, value = expand_heads(key, query), expand_heads(value, query)
        return self.forward(query, key, value, causal)

    def gradients(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        log_sum: Tensor,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Parts of the gradients of query, key and value; those of a shared key head are summed, in fp32."""
        if not self.grouped:
            key, value = expand_heads(key, query), expand_heads(value, query)
        of_query, of_key, of_value = self.backward(gradient, query, key, value, out, log_sum, causal)
        if self.grouped:
            return of_query, of_key, of_value
        wide = accumulation_dtype(query.dtype)
        return of_query, of_key.sum(1, keepdim=True, dtype=wide), of_value.sum(1, keepdim=True, dtype=wide)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def block_kernel(query: Tensor, key: Tensor) -> BlockKernel:
    """The fastest exact kernel for these tensors' device, dtype and sizes, folded as ``BlockKernel`` says."""
    device, dtype = query.device.type, query.dtype
    if device == "cpu" and _CPU is not None:
        return CPU_FLASH._replace(grouped=takes_groups(device, dtype))
    if device == "cuda":
        if query.shape[-1] % 8 == 0 and can_use_flash_attention(
            SDPAParams(query, key, key, None, 0.0, True, True)
        ):
            return CUDA_FLASH
        spread_key = expand_heads(key, query)
        if can_use_efficient_attention(SDPAParams(query, spread_key, spread_key, None, 0.0, True, False)):
            return CUDA_EFFICIENT
    return MATMUL


def _cpu_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    out, log_sum = _CPU(query, key, value, 0.0, causal)
    return out, log_sum


def _cpu_flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = _CPU_BACKWARD(gradient, query, key, value, out, log_sum, 0.0, causal)
    return of_query, of_key, of_value


def _cuda_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    out, log_sum, *_ = _FLASH(query, key, value, 0.0, causal)
    return out, log_sum


def _cuda_flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    lengths = None, None, query.shape[2], key.shape[2]
    seed, offset = (query.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
    of_query, of_key, of_value = _FLASH_BACKWARD(
        gradient, query, key, value, out, log_sum.contiguous(), *lengths, 0.0, causal, seed, offset
    )
    return of_query, of_key, of_value


def _cuda_efficient(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    out, log_sum, *_ = _EFFICIENT(query, key, value, None, True, 0.0, causal)
    return out, log_sum[..., : query.shape[2]]


def _cuda_efficient_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    padded = F.pad(log_sum, (0, -log_sum.shape[-1] % _EFFICIENT_ROWS), value=math.inf)
    unused = query.new_empty((), dtype=torch.int64)
    wanted = [True, True, True, False]
    of_query, of_key, of_value, _ = _EFFICIENT_BACKWARD(
        gradient, query, key, value, None, out, padded, unused, unused, 0.0, wanted, causal
    )
    return of_query, of_key, of_value


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores: Tensor = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), -math.inf)
    return scores


def _matmul(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    wide = accumulation_dtype(query.dtype)
    scores = _scores(query.to(wide), key.to(wide), causal)
    log_sum = scores.logsumexp(-1)
    return (scores.sub_(log_sum.unsqueeze(-1)).exp_() @ value.to(wide)).to(query.dtype), log_sum


def _matmul_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = accumulation_dtype(query.dtype)
    gradient, query, key, value, out = (x.to(wide) for x in (gradient, query, key, value, out))
    probabilities = _scores(query, key, causal).sub_(log_sum.unsqueeze(-1)).exp_()
    inner = (gradient * out).sum(-1, keepdim=True)
    of_scores = probabilities * (gradient @ value.transpose(-1, -2) - inner) * query.shape[-1] ** -0.5
    of_value = probabilities.transpose(-1, -2) @ gradient
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, of_value


CPU_FLASH = BlockKernel(_cpu_flash, _cpu_flash_backward, grouped=False)
CUDA_FLASH = BlockKernel(_cuda_flash, _cuda_flash_backward, grouped=True)
CUDA_EFFICIENT = BlockKernel(_cuda_efficient, _cuda_efficient_backward, grouped=False)
#: Works everywhere; holds the scores of a whole block.
MATMUL = BlockKernel(_matmul, _matmul_backward, grouped=False)
