"""Causal attention with grouped queries (arXiv 2305.13245) by torch's own kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[batch, heads, sequence, head_dim] with [batch, kv_heads, sequence, head_dim]; the result is like ``query``.

    A fused kernel reads grouped key heads in place: no copies of them, neither now nor kept for the backward pass.
    """
    kv_heads = key.shape[1]
    if query.shape[1] == kv_heads:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    if takes_groups(query.device.type, query.dtype):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    query = fold(query, kv_heads)
    key, value = (spread(fold(x, kv_heads), query) for x in (key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
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


def spread(x: Tensor, query: Tensor) -> Tensor:
    """One key head [n, 1, keys, head_dim] as many times as there are query heads; a view."""
    return x.expand(-1, query.shape[1], -1, -1)
