"""The rules of what is trained beside a frozen model. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.knobs.facts import Context
from engine.config.presets import WorkloadFacts, facts_of, is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings

KEY, RANK = "train.adapt", "train.adapt_rank"


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
    for setting in refused_settings(config, Context.FROZEN_MODEL):
        yield LayoutError(KEY, kind, f"{setting.why}; {setting.named_remedy}, or this to none")
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
