"""The rules for parameters that are one: how layers are grouped, and what cannot be cut with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.formulas.tied_parameters import Holders, sharing_among
from engine.config.layout import layers_of_stages
from engine.config.run_config import RunConfig

_EMBEDDING = "embedding"


def sharing_problems(config: RunConfig, blocks: int | None) -> Iterator[LayoutError]:
    """Every broken rule; ``blocks`` are those of the model, None where nobody knows them yet."""
    model, groups = config.model, config.model.layer_groups
    if blocks is None or not (groups or model.tied_embeddings):
        return
    if groups is not None and blocks % groups:
        legal = [size for size in range(1, blocks + 1) if blocks % size == 0]
        nearest = " or ".join(map(str, sorted(sorted(legal, key=lambda count: abs(count - groups))[:2])))
        yield LayoutError(
            "model.layer_groups",
            groups,
            f"must divide layers={blocks} into groups of equal size; nearest legal: {nearest}",
        )
        return
    between = _shared_between_stages(config, blocks)
    if between is None:
        return
    if config.parallel.zero_stage >= 2 and config.schedule.chunks > 1:
        remedy = (
            f"shards each of a rank's stages by itself, and they share {between}; set zero_stage to 0 or 1, "
            "or schedule.chunks to 1"
        )
        yield LayoutError("parallel.zero_stage", config.parallel.zero_stage, remedy)
    if (
        config.outer.method != "none"
        and config.outer.gap in ("tensor", "element")
        and config.parallel.zero_stage
    ):
        remedy = (
            f"is measured on slices, which differ between stages, and these share {between}; set it to scalar"
        )
        yield LayoutError("outer.gap", config.outer.gap, remedy)


def _shared_between_stages(config: RunConfig, blocks: int) -> str | None:
    """What more than one stage has of the same parameters, in words; None if nothing."""
    stages, stage_layers = config.parallel.pp * config.schedule.chunks, config.schedule.stage_layers
    if stages > blocks or (
        stage_layers is not None and (len(stage_layers) != stages or sum(stage_layers) != blocks)
    ):
        return None  # another rule tells
    sharing = sharing_among(config.model, blocks, (_EMBEDDING, ""))
    layers = layers_of_stages(blocks, stages, stage_layers)
    holders = Holders(sharing, layers, ())
    names = {f"blocks.{sharing.first(layer)}.": "layers" for layer in range(blocks)}
    names |= {_EMBEDDING: "tied embeddings"} if sharing.tied is not None else {}
    return next((shared for name, shared in names.items() if len(holders.stages(name)) > 1), None)
