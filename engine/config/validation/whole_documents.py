"""The rules of samples that are whole documents, and of the groups of ranks that share them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.formulas.expert_rows import is_bucketed
from engine.config.layout import group_document_tokens
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import SEQUENCE_DEGREES

KEY, LONGEST = "parallel.sequence_groups", "data.longest_document"
_WINDOWS = "or data.documents to masked"


def document_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Of ``parallel.sequence_groups`` and of ``data.documents`` = whole."""
    if config.data.documents != "whole":
        if (most := config.data.longest_document) is not None:
            yield LayoutError(
                LONGEST, most, "cuts whole documents; set data.documents to whole, or leave it out"
            )
        if config.parallel.sequence_groups != 1:
            yield LayoutError(
                KEY,
                config.parallel.sequence_groups,
                "shares whole documents; set data.documents to whole, or leave it out",
            )
        return
    if not is_decoder(config.model):
        return  # refused with documents of any kind
    for key, value, why, applies in _unsupported_settings(config):
        if applies:
            yield LayoutError(key, value, f"{why}, {_WINDOWS}")
    yield from _group_problems(config)
    most, held = config.data.longest_document, group_document_tokens(config)
    if most is not None and most > held:
        remedy = "raise parallel.sequence_groups, batch.micro_batch or data.sequence_length"
        yield LayoutError(LONGEST, most, f"the largest group holds {held} tokens; {remedy}")


def _group_problems(config: RunConfig) -> Iterator[LayoutError]:
    groups, dp = config.parallel.sequence_groups, config.parallel.dp
    if not isinstance(groups, int) or groups == 1:
        return
    shape = resolve(config.model)
    sizes = {
        f"dp={dp}": dp,
        f"heads={shape.heads}": shape.heads,
        f"kv_heads={shape.kv_heads}": shape.kv_heads,
    }
    for name, size in sizes.items():
        if size % groups:
            legal = [
                degree for degree in SEQUENCE_DEGREES if all(one % degree == 0 for one in sizes.values())
            ]
            yield LayoutError(KEY, groups, f"must divide {name}; legal here: {legal}, or planned")
            return


def _unsupported_settings(config: RunConfig) -> Iterator[tuple[str, object, str, bool]]:
    """Key, value, what to do, and whether it stands in the way."""
    parallel, memory, train = config.parallel, config.memory, config.train
    why = "goes without whole documents"
    tasks = [task.name for task in config.data.tasks]
    yield "data.tasks", tasks, f"{why}; leave them out", bool(tasks)
    ahead = config.data.ahead
    yield "data.ahead", ahead, "their plan is made ahead already; leave it out", ahead > 0
    yield "parallel.tp", parallel.tp, f"{why}; set tp to 1", parallel.tp > 1
    yield "parallel.embedding", parallel.embedding, f"{why}; leave it out", parallel.embedding == "columns"
    factor = config.model.capacity_factor
    yield (
        "model.capacity_factor",
        factor,
        f"{why}, as ranks have unequal numbers of tokens; leave it out",
        factor is not None,
    )
    experts = config.compression.experts
    yield "compression.experts", experts, f"{why}; set it to none, bf16 or int8", is_bucketed(config)
    slots = memory.expert_slots
    yield "memory.expert_slots", slots, f"{why}; leave it out", slots is not None
    yield (
        "batch.ramp_from",
        config.batch.ramp_from,
        f"{why}; leave it out",
        config.batch.ramp_from is not None,
    )
    chunks = config.schedule.chunks
    yield "schedule.chunks", chunks, f"{why}, which are one stage's; set it to 1", chunks > 1
    yield "outer.method", config.outer.method, f"{why}; set it to none", config.outer.method != "none"
    yield "overlap.delay", config.overlap.delay, f"{why}; set it to 0", config.overlap.delay > 0
    yield "compile", config.compile, "would compile each length anew; set it to false", config.compile
    yield (
        "memory.offload",
        memory.offload,
        f"{why}; set it to none or optimizer",
        memory.offload in ("activations", "both"),
    )
    for name in ("block_actions", "budget_gib"):
        value = getattr(memory, name)
        yield f"memory.{name}", value, f"{why}; leave it out", value is not None
    yield (
        "memory.sample_tokens",
        memory.sample_tokens,
        f"{why}; set it to 1",
        memory.sample_tokens < 1,
    )
    yield "train.slice_keep", train.slice_keep, f"{why}; set it to 1", train.slice_keep < 1
    yield "train.adapt", train.adapt, f"{why}; set it to none", train.adapt != "none"
