"""The rules of what is trained beside a frozen model. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.presets import WorkloadFacts, facts_of, is_decoder, resolve
from engine.config.run_config import RunConfig

KEY, RANK = "train.adapt", "train.adapt_rank"
#: Settings that a frozen model does without so far: key, the value with which it does nothing, and why.
_WITHOUT = (
    ("parallel.tp", 1, "factors are not split over tp"),
    ("parallel.pp", 1, "a frozen model stays in one stage"),
    ("parallel.cp", 1, "what is trained sees whole sequences"),
    ("schedule.chunks", 1, "a frozen model stays in one stage"),
    ("parallel.embedding", "replicated", "a frozen embedding sends no gradient that could be spared"),
    ("model.experts", None, "only dense blocks have factors"),
    ("model.layer_groups", None, "layers that share matrices would have factors of their own"),
    ("model.tied_embeddings", False, "a frozen head is a matrix of its own"),
    ("memory.recompute", "none", "a frozen block's backward is not made again"),
    ("memory.offload", "none", "activations and state are small, and stay where they are"),
    ("memory.block_actions", None, "activations are few, and stay where they are"),
    ("memory.budget_gib", None, "a plan measures blocks that learn"),
    ("memory.parameters", "fp32", "frozen parameters are kept as they were saved"),
    ("memory.sample_tokens", 1.0, "a frozen matrix has no gradient to sample"),
    ("train.slice_keep", 1.0, "factors are not cut"),
    ("compression.method", "none", "gradients of factors are small, and go as they are"),
    ("outer.method", "none", "replicas meet in all that they hold"),
    ("overlap.gather_with_optimizer", False, "factors are gathered after the update"),
    ("compile", False, "compiled blocks have no place for factors"),
)


def adapting_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule; where everything learns there is none."""
    kind = config.train.adapt
    if kind == "none":
        return
    if config.train.resume is None:
        yield LayoutError(KEY, kind, "adapts a checkpoint; name one in train.resume, or set this to none")
    if config.parallel.zero_stage >= 2:
        why = "ZeRO 2 and 3 slice what is frozen, too; set parallel.zero_stage to 0 or 1, or this to none"
        yield LayoutError(KEY, kind, why)
    if config.train.optimizer == "muon":
        yield LayoutError(
            KEY, kind, "Muon would turn factors alone; set train.optimizer to adamw, or this to none"
        )
    if kind == "losa" and config.data.documents != "joined":
        why = (
            "its sums over tokens see no borders of documents; set data.documents to joined, or this to lora"
        )
        yield LayoutError(KEY, kind, why)
    flat = config.flat()
    for key, neutral, why in _WITHOUT:
        if flat[key] != neutral:
            remedy = "leave out" if neutral is None else f"set {key} to {str(neutral).lower()}"
            remedy += f" {key}" if neutral is None else ""
            yield LayoutError(KEY, kind, f"{why}; {remedy}, or this to none")
    if is_decoder(config.model):
        yield from _rank_problems(config)
    elif (facts := facts_of(config.model)) is not None:
        yield from _own_model_problems(config, facts)


def _own_model_problems(config: RunConfig, facts: WorkloadFacts) -> Iterator[LayoutError]:
    """Of a model of one's own, once somebody looked at it."""
    kind, rank, least = config.train.adapt, config.train.adapt_rank, facts.narrowest
    if kind == "losa":
        least = None if facts.places_width is None else min(facts.places_width)
    if least is None and kind == "lora":
        why = "stands beside torch.nn.Linear, and no block has one; set this to losa, or to none"
        yield LayoutError(KEY, kind, why)
    elif least is None:
        why = "reads what blocks give as [samples, places, width], and they give something else; set this to lora"
        yield LayoutError(KEY, kind, why)
    elif rank > least:
        yield LayoutError(RANK, rank, f"is above {least}, the narrowest side; choose at most {least}")


def _rank_problems(config: RunConfig) -> Iterator[LayoutError]:
    """A factor of more rows than the matrix saves nothing."""
    shape, rank = resolve(config.model), config.train.adapt_rank
    widths = {"hidden": shape.hidden}
    if config.train.adapt == "lora":
        widths |= {"kv_heads x head_dim": shape.kv_heads * shape.head_dim, "ffn_hidden": shape.ffn_hidden}
    else:
        widths["sequence_length"] = config.data.sequence_length
    name, least = min(widths.items(), key=lambda pair: pair[1])
    if rank > least:
        yield LayoutError(RANK, rank, f"is above {name}={least}, the narrowest side; choose at most {least}")
