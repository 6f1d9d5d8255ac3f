"""What a configuration's overlap has to keep, with the nearest legal values. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig


def problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule about overlap."""
    yield from _prefetch_rules(config)
    yield from _gather_rules(config)
    yield from _chunk_rules(config)
    yield from _delay_rules(config)
    if config.outer.method != "none":
        yield from _outer_rules(config)


def _outer_rules(config: RunConfig) -> Iterator[LayoutError]:
    """An outer loop takes weights and gives new ones between steps: nothing may be under way then."""
    for name, value, rest in (
        ("delay", config.overlap.delay, 0),
        ("gather_with_optimizer", config.overlap.gather_with_optimizer, False),
    ):
        if value:
            yield LayoutError(
                f"overlap.{name}", value, f"not beside outer.method {config.outer.method}; set it to {rest}"
            )


def _prefetch_rules(config: RunConfig) -> Iterator[LayoutError]:
    depth, ranks = config.overlap.prefetch, layout_of(config).inner
    if depth and (config.parallel.zero_stage < 2 or ranks == 1):
        remedy = "only zero_stage 2 or 3 on several dp x cp ranks gathers layers; set it to 0"
        yield LayoutError("overlap.prefetch", depth, remedy)


def _gather_rules(config: RunConfig) -> Iterator[LayoutError]:
    key = "overlap.gather_with_optimizer"
    if not config.overlap.gather_with_optimizer:
        return
    if config.parallel.zero_stage != 1 or layout_of(config).inner == 1:
        yield LayoutError(
            key, True, "only zero_stage 1 on several dp x cp ranks gathers what it updated; set it to false"
        )
    if config.memory.offload in ("optimizer", "both"):
        yield LayoutError(
            key, True, "weights come back from the host all at once; set it to false, or offload less"
        )


def _chunk_rules(config: RunConfig) -> Iterator[LayoutError]:
    chunks, parallel = config.overlap.tp_chunks, config.parallel
    if chunks == 1:
        return
    if parallel.tp == 1:
        yield LayoutError(
            "overlap.tp_chunks", chunks, "with tp=1 nothing is gathered; set it to 1 or raise tp"
        )
        return
    if config.compile:
        yield LayoutError(
            "overlap.tp_chunks", chunks, "chunks run outside compiled code; set it to 1, or compile to false"
        )
    ranks, length = parallel.cp * parallel.tp, config.data.sequence_length
    if length % ranks == 0 and (length // ranks) % chunks:
        own = length // ranks
        nearest = min((n for n in range(1, own + 1) if own % n == 0), key=lambda n: (abs(n - chunks), n))
        yield LayoutError(
            "overlap.tp_chunks",
            chunks,
            f"must divide a rank's part of the sequence, {own:,} tokens; nearest legal: {nearest}",
        )


def _delay_rules(config: RunConfig) -> Iterator[LayoutError]:
    delay = config.overlap.delay
    if not delay:
        return
    if layout_of(config).inner == 1:
        yield LayoutError("overlap.delay", delay, "with dp=1 no gradient is sent; set it to 0 or raise dp")
    if config.parallel.zero_stage > 1:
        yield LayoutError(
            "overlap.delay",
            delay,
            "zero_stage 2 and 3 keep no buckets that could wait; set it to 0, or zero_stage to 0 or 1",
        )
