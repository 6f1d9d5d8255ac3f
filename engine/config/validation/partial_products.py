"""The rules for products that leave out tokens or parts of matrices. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.schedules.registry import SCHEDULES

_TOKENS, _SLICE = "memory.sample_tokens", "train.slice_keep"
#: How far a share may be from what it stands for: people write 0.666667 for two thirds.
_ROUNDING = 1e-6


def thinning_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; with all tokens and whole matrices there is none."""
    yield from _slice_problems(config)
    share = config.memory.sample_tokens
    if share < 1:
        for reason in _reasons(config):
            yield LayoutError(_TOKENS, share, f"{reason}, or this to 1")
        if config.memory.recompute == "full" and config.memory.recompute_layers is None:
            remedy = (
                "everything is computed again, and no input kept; set memory.recompute to none, or this to 1"
            )
            yield LayoutError(_TOKENS, share, remedy)
        if config.memory.budget_gib is not None:
            remedy = (
                "its plan measures blocks that keep all tokens; leave out memory.budget_gib, or set this to 1"
            )
            yield LayoutError(_TOKENS, share, remedy)


def _slice_problems(config: RunConfig) -> Iterator[LayoutError]:
    keep, parallel, kind = config.train.slice_keep, config.parallel, SCHEDULES[config.schedule.kind]
    if keep == 1:
        return
    reasons = list(_reasons(config))
    if parallel.tp_replicated:
        reasons.append("matrices that are whole on every rank are not cut; leave out parallel.tp_replicated")
    if kind.splits_backward and parallel.pp * config.schedule.chunks > 1:
        reasons.append(f"{config.schedule.kind} takes gradients of whole matrices; set schedule.kind to 1f1b")
    if config.model.layer_groups is not None:
        reasons.append("layers that share parameters would be cut differently; leave out model.layer_groups")
    if config.memory.sample_tokens < 1:
        reasons.append("sampled products take whole matrices; set memory.sample_tokens to 1")
    if config.memory.budget_gib is not None:
        reasons.append("a plan of activations measures whole matrices; leave out memory.budget_gib")
    for reason in reasons:
        yield LayoutError(_SLICE, keep, f"{reason}, or this to 1")
    if is_decoder(config.model):
        yield from _uneven_slices(config)


def _uneven_slices(config: RunConfig) -> Iterator[LayoutError]:
    """Of a rank's heads, counted as keys have them, and its width, whole ones are kept."""
    keep, parallel, shape = config.train.slice_keep, config.parallel, resolve(config.model)
    sizes = [("kv_heads / tp", shape.kv_heads, parallel.tp)]
    if parallel.cp > 1 and parallel.cp_method == "ulysses":  # which deals the heads that are kept
        sizes = [("kv_heads / tp / cp", shape.kv_heads, parallel.tp * parallel.cp)]
    if config.model.experts is None:
        sizes.append(("ffn_hidden / tp", shape.ffn_hidden, parallel.tp))
    if any(size % ranks for _, size, ranks in sizes):
        return  # another rule tells
    each = {name: size // ranks for name, size, ranks in sizes}
    parts = math.gcd(*each.values())
    nearest = max(1, round(keep * parts)) / parts
    if abs(keep - nearest) > _ROUNDING:
        of = " and ".join(f"{name} = {size}" for name, size in each.items())
        yield LayoutError(_SLICE, keep, f"of {of} it keeps no whole number; nearest legal: {nearest:.6g}")


def _reasons(config: RunConfig) -> Iterator[str]:
    """What stands in the way of products of our own."""
    if not is_decoder(config.model):
        yield "only the decoder's matrices can; set model.workload to decoder"
    if config.compile:
        yield "compiled blocks have no such products; set compile to false"
    if config.parallel.tp_regather:
        yield "what tp gathers again is kept in slices; set parallel.tp_regather to false"
    if config.overlap.tp_chunks > 1:
        yield "products in chunks keep all of their inputs; set overlap.tp_chunks to 1"
