"""Rank and coordinates, and the rules a layout has to keep before anything starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import RunConfig
from engine.errors import LayoutError
from engine.presets import ModelShape, resolve


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism. Ranks are numbered with tp fastest, then dp, then pp."""

    dp: int
    tp: int
    pp: int
    zero_stage: int = 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        return Coordinates(rank // self.tp % self.dp, rank % self.tp, rank // (self.tp * self.dp))

    def rank(self, at: Coordinates) -> int:
        """Inverse of :meth:`coordinates`."""
        return (at.pp * self.dp + at.dp) * self.tp + at.tp

    def groups(self, axis: str) -> list[list[int]]:
        """All process groups of an axis (``dp``, ``tp``, ``pp`` or ``model`` = tp x pp), in one fixed order."""
        varying = {"dp": ("dp",), "tp": ("tp",), "pp": ("pp",), "model": ("tp", "pp")}[axis]
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            at = self.coordinates(rank)
            fixed = tuple(getattr(at, name) for name in ("dp", "tp", "pp") if name not in varying)
            members.setdefault(fixed, []).append(rank)
        return list(members.values())

    def as_dict(self) -> dict[str, int]:
        """The ``layout`` object of results."""
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": 1, "ep": 1, "zero_stage": self.zero_stage}


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place on each axis."""

    dp: int
    tp: int
    pp: int


def layout_of(config: RunConfig) -> Layout:
    """The layout a configuration asks for, unchecked."""
    parallel = config.parallel
    return Layout(parallel.dp, parallel.tp, parallel.pp, parallel.zero_stage)


def accumulation(config: RunConfig) -> int:
    """Micro-batches per optimizer step and data-parallel rank."""
    return config.batch.global_batch // (config.parallel.dp * config.batch.micro_batch)


def check(config: RunConfig) -> Layout:
    """The layout, if it keeps every rule.

    Raises:
        LayoutError: the first rule that is broken, with the nearest legal values.
        InputError: the model's own sizes do not fit together.
    """
    for problem in problems(config):
        raise problem
    return layout_of(config)


def problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule of a configuration, cheapest first."""
    shape = resolve(config.model)
    yield from _world_rules(config)
    yield from _model_rules(config, shape)
    yield from _batch_rules(config)
    yield from _method_rules(config)


def _world_rules(config: RunConfig) -> Iterator[LayoutError]:
    parallel = config.parallel
    product = parallel.dp * parallel.tp * parallel.pp * parallel.cp
    if parallel.world_size is not None and parallel.world_size != product:
        yield LayoutError(
            "parallel.world_size",
            parallel.world_size,
            f"dp={parallel.dp} x tp={parallel.tp} x pp={parallel.pp} x cp={parallel.cp} = {product} ranks; "
            "the degrees must multiply to the world size",
        )
    for name in ("cp", "ep"):
        if getattr(parallel, name) != 1:
            yield LayoutError(
                f"parallel.{name}", getattr(parallel, name), "this axis is not built yet; set it to 1"
            )
    if parallel.zero_stage in (1, 2):
        yield LayoutError(
            "parallel.zero_stage", parallel.zero_stage, "not built yet; choose 0 (DDP) or 3 (FSDP2)"
        )


def _model_rules(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    parallel, length = config.parallel, config.data.sequence_length
    divided = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_hidden": shape.ffn_hidden,
        "vocabulary": shape.vocabulary,
        "sequence_length": length,
    }
    for name, size in divided.items():
        if size % parallel.tp:
            yield _not_divisible("parallel.tp", parallel.tp, f"{name}={size}", size)
    if shape.layers % parallel.pp:
        yield _not_divisible("parallel.pp", parallel.pp, f"layers={shape.layers}", shape.layers)


def _batch_rules(config: RunConfig) -> Iterator[LayoutError]:
    dp, batch = config.parallel.dp, config.batch
    if batch.global_batch % dp:
        yield _not_divisible("parallel.dp", dp, f"global_batch={batch.global_batch}", batch.global_batch)
    elif batch.global_batch // dp % batch.micro_batch:
        per_rank = batch.global_batch // dp
        yield _not_divisible(
            "batch.micro_batch", batch.micro_batch, f"global_batch / dp = {per_rank}", per_rank
        )


def _method_rules(config: RunConfig) -> Iterator[LayoutError]:
    method = config.compression.method
    if method != "none" and config.parallel.dp == 1:
        yield LayoutError(
            "compression.method", method, "with dp=1 no gradient is sent; set it to none or raise dp"
        )
    if method != "none" and config.parallel.zero_stage == 3:
        yield LayoutError(
            "compression.method", method, "needs zero_stage 0 (DDP buckets); set one of the two"
        )


def _not_divisible(field: str, value: int, what: str, size: int) -> LayoutError:
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    below = max((n for n in divisors if n <= value), default=1)
    above = min((n for n in divisors if n >= value), default=size)
    nearest = f"{below} or {above}" if above != below else f"{below}"
    return LayoutError(field, value, f"must divide {what}; nearest legal: {nearest}")
