"""What a configuration's outer loop has to keep, with the nearest legal values. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError
from engine.config.layout import layout_of
from engine.config.presets import ModelShape
from engine.config.run_config import RunConfig


def problems(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    """Every broken rule about outer loops."""
    method, dp = config.outer.method, config.parallel.dp
    if method == "none":
        return
    if dp == 1:
        yield LayoutError(
            "outer.method", method, "with dp=1 there is one replica; set it to none or raise dp"
        )
        return
    yield from _replica_problems(config)
    if method == "streaming":
        yield from _fragment_problems(config, shape)


def _replica_problems(config: RunConfig) -> Iterator[LayoutError]:
    parallel, replicas = config.parallel, config.outer.replicas or config.parallel.dp
    if parallel.dp % replicas:
        legal = [n for n in range(2, parallel.dp + 1) if parallel.dp % n == 0]
        nearest = min(legal, key=lambda n: abs(n - replicas))
        yield LayoutError(
            "outer.replicas", replicas, f"must divide dp={parallel.dp}; nearest legal: {nearest}"
        )
        return
    inner = layout_of(config).inner
    for field, value in (("parallel.ep", parallel.ep), ("parallel.shard_ranks", parallel.shard_ranks or 1)):
        if inner % value:
            yield LayoutError(
                field,
                value,
                f"must divide the {inner} data ranks of one replica ({replicas} replicas); "
                "lower it or outer.replicas",
            )


def _fragment_problems(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    outer = config.outer
    most = min(shape.layers, outer.period)
    if outer.fragments > most:
        what = f"layers={shape.layers} in rounds of {outer.period} steps"
        yield LayoutError(
            "outer.fragments",
            outer.fragments,
            f"at most one a layer and a step: {what}; nearest legal: {most}",
        )
        return
    between = outer.period // outer.fragments
    if outer.overlap >= between:
        yield LayoutError(
            "outer.overlap",
            outer.overlap,
            f"the next fragment is sent {between} steps later, and one is under way at a time; "
            f"nearest legal: {between - 1}",
        )
