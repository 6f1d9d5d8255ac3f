"""The rules of samples that are whole documents, and of the groups of ranks that share them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.knobs.facts import Context
from engine.config.layout import group_document_tokens
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import SEQUENCE_DEGREES
from engine.config.validation.refusals import refused_settings

KEY, LONGEST = "parallel.sequence_groups", "data.longest_document"
_WHY, _WINDOWS = "goes without whole documents", "or data.documents to masked"


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
    if config.data.tasks:
        tasks = [task.name for task in config.data.tasks]
        yield LayoutError("data.tasks", tasks, f"{_WHY}; leave them out, {_WINDOWS}")
    for setting in refused_settings(config, Context.WHOLE_DOCUMENTS):
        yield LayoutError(setting.key, setting.value, f"{setting.why or _WHY}; {setting.remedy}, {_WINDOWS}")
    yield from _group_problems(config)
    most, group_tokens = config.data.longest_document, group_document_tokens(config)
    if most is not None and most > group_tokens:
        remedy = "raise parallel.sequence_groups, batch.micro_batch or data.sequence_length"
        yield LayoutError(LONGEST, most, f"the largest group holds {group_tokens} tokens; {remedy}")


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
                degree for degree in SEQUENCE_DEGREES if all(size % degree == 0 for size in sizes.values())
            ]
            yield LayoutError(KEY, groups, f"must divide {name}; legal here: {legal}, or planned")
            return
