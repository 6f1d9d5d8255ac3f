"""The rules for products that leave out tokens or parts of matrices. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.knobs.facts import Context
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings
from engine.schedules.registry import SCHEDULES

_TOKENS, _SLICE = "memory.sample_tokens", "train.slice_keep"
#: How far a share may be from what it stands for: people write 0.666667 for two thirds.
_ROUNDING = 1e-6


def thinning_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; with all tokens and whole matrices there is none."""
    yield from _slice_problems(config)
    share = config.memory.sample_tokens
    if share < 1:
        for setting in refused_settings(config, Context.PARTIAL_PRODUCTS):
            yield LayoutError(_TOKENS, share, f"{setting.why}; {setting.named_remedy}, or this to 1")
        if config.memory.recompute == "full" and config.memory.recompute_layers is None:
            remedy = (
                "everything is computed again, and no input kept; set memory.recompute to none, or this to 1"
            )
            yield LayoutError(_TOKENS, share, remedy)


def _slice_problems(config: RunConfig) -> Iterator[LayoutError]:
    keep, parallel, kind = config.train.slice_keep, config.parallel, SCHEDULES[config.schedule.kind]
    if keep == 1:
        return
    for context in (Context.PARTIAL_PRODUCTS, Context.TRAINED_SLICE):
        for setting in refused_settings(config, context):
            yield LayoutError(_SLICE, keep, f"{setting.why}; {setting.named_remedy}, or this to 1")
    if kind.splits_backward and parallel.pp * config.schedule.chunks > 1:
        why = f"{config.schedule.kind} takes gradients of whole matrices"
        yield LayoutError(_SLICE, keep, f"{why}; set schedule.kind to 1f1b, or this to 1")
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
    slices = {name: size // ranks for name, size, ranks in sizes}
    parts = math.gcd(*slices.values())
    nearest = max(1, round(keep * parts)) / parts
    if abs(keep - nearest) > _ROUNDING:
        sizes_text = " and ".join(f"{name} = {size}" for name, size in slices.items())
        yield LayoutError(
            _SLICE, keep, f"of {sizes_text} it keeps no whole number; nearest legal: {nearest:.6g}"
        )
