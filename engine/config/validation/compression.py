"""What a configuration's compression has to keep, with the nearest legal values. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.compression_methods import METHODS, RANK, one_way, planned
from engine.config.errors import LayoutError
from engine.config.layout import layout_of
from engine.config.presets import ModelShape
from engine.config.run_config import RunConfig


def problems(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    """Every broken rule about compression."""
    method, layout = config.compression.method, layout_of(config)
    yield from _format_problems(config)
    if config.compression.plan != "none" and method not in planned():
        remedy = (
            f"method {method} has no value to choose for each layer; set plan to none, or method to one of "
        )
        yield LayoutError("compression.plan", config.compression.plan, remedy + ", ".join(planned()))
    if config.compression.plan != "none" and config.parallel.zero_stage:
        remedy = "chooses for whole gradient buckets; set it to none, or zero_stage to 0"
        yield LayoutError("compression.plan", config.compression.plan, remedy)
    if method == "none":
        return
    if layout.inner == 1:
        where = "with dp=1" if layout.data == 1 else "in replicas of one data rank"
        other = "raise dp" if layout.data == 1 else "lower outer.replicas"
        yield LayoutError(
            "compression.method", method, f"{where} no gradient is sent; set it to none or {other}"
        )
    if config.parallel.zero_stage and not METHODS[method].one_way:
        yield LayoutError(
            "compression.method",
            method,
            f"needs zero_stage 0 (whole gradient buckets); set one of the two, or method to {' or '.join(one_way())}",
        )
    for glob, value in config.compression.layers.items():
        if value != "none" and (remedy := _value_problem(method, value)):
            yield LayoutError(f"compression.layers.{glob}", value, remedy)
    if METHODS[method].level is RANK:
        yield from _rank_problem(config, shape)


def _format_problems(config: RunConfig) -> Iterator[LayoutError]:
    weights, experts = config.compression.weights, config.compression.experts
    if weights != "none" and (config.parallel.zero_stage < 2 or layout_of(config).shard == 1):
        remedy = "only zero_stage 2 or 3 on several dp x cp ranks gathers weights; set it to none"
        yield LayoutError("compression.weights", weights, remedy)
    if experts != "none" and config.parallel.ep == 1:
        yield LayoutError(
            "compression.experts", experts, "with ep=1 no token is sent; set it to none or raise ep"
        )
    if experts == "bf16" and config.precision == "bf16":
        yield LayoutError("compression.experts", experts, "tokens are bf16 already; set it to none or int8")


def _value_problem(method: str, value: float) -> str:
    level = METHODS[method].level
    if level is None:
        return f'{method} has no value for parameters; give "none", or leave it out'
    remedy = level.problem(value)
    return f"is {level.called} with {method}; {remedy}" if remedy else ""


def _rank_problem(config: RunConfig, shape: ModelShape) -> Iterator[LayoutError]:
    """A rank at which no matrix gets smaller; of those at which some do, the others are left alone."""
    rank, sizes = config.compression.rank, _matrices(config, shape)
    legal, rows, columns = max((max(1, n * m // (2 * (n + m))), n, m) for n, m in sizes)
    if rank <= legal:
        return
    largest = f"the largest matrix of a rank is {rows:,} x {columns:,}"
    remedy = (
        "that is more than it has rows or columns"
        if rank > min(rows, columns)
        else "that saves less than half"
    )
    yield LayoutError("compression.rank", rank, f"{largest}; {remedy}; nearest legal: {legal}")


def _matrices(config: RunConfig, shape: ModelShape) -> list[tuple[int, int]]:
    tp, hidden = config.parallel.tp, shape.hidden
    width = (
        shape.ffn_hidden
        if config.model.experts is None
        else config.model.expert_ffn_hidden or shape.ffn_hidden
    )
    return [(max(1, size // tp), hidden) for size in (shape.vocabulary, hidden, width)]
