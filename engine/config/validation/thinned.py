"""The rules for products that leave out tokens or parts of matrices. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig

_TOKENS = "memory.sample_tokens"


def thinning_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; with all tokens there is none."""
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
