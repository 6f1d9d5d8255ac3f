"""Settings one step away from a configuration: of the same ranks and global batch, and legal. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from engine.config.errors import InputError
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.validation import rules

_AXES = ("dp", "tp", "pp")
_LOSSY = ("bf16", "int8", "powersgd")
#: Chunks are tried up to here.
_MOST_CHUNKS = 8


class Neighbour(NamedTuple):
    """Keys with their new values, and the configuration with them."""

    values: dict[str, Any]
    config: RunConfig


def of(config: RunConfig) -> list[Neighbour]:
    """Each of them once; the configuration itself is legal."""
    found: dict[str, Neighbour] = {}
    flat = config.flat()
    for moved in _moves(config):
        values = {key: value for key, value in moved.items() if flat[key] != value}
        other = _legal(config, values) if values else None
        if other is not None:
            found.setdefault(repr(sorted(values.items())), Neighbour(values, other))
    return list(found.values())


def _legal(config: RunConfig, values: dict[str, Any]) -> RunConfig | None:
    try:
        other = config.with_values(values)
        return None if any(True for _ in rules.problems(other)) else other
    except InputError:
        return None


def _moves(config: RunConfig) -> Iterator[dict[str, Any]]:
    micro, parallel = config.batch.micro_batch, config.parallel
    yield {"batch.micro_batch": 2 * micro}
    if micro % 2 == 0:
        yield {"batch.micro_batch": micro // 2}
    for give, take in itertools.permutations(_AXES, 2):
        yield from _moved(config, give, take)
    yield from ({"parallel.zero_stage": stage} for stage in range(4) if parallel.dp * parallel.cp > 1)
    yield from (
        {"memory.recompute": kind, "memory.recompute_layers": None} for kind in ("none", "selective", "full")
    )
    yield from _chunks(config)
    if parallel.dp * parallel.cp > 1:
        yield from ({"compression.method": method} for method in ("none", *_LOSSY))


def _moved(config: RunConfig, give: str, take: str) -> Iterator[dict[str, Any]]:
    """The smallest factor of one degree goes to another; the number of micro-batches stays whole."""
    have = {axis: getattr(config.parallel, axis) for axis in _AXES}
    factor = next((n for n in range(2, have[give] + 1) if have[give] % n == 0), None)
    if factor is None:
        return
    values: dict[str, Any] = {
        f"parallel.{give}": have[give] // factor,
        f"parallel.{take}": have[take] * factor,
    }
    if give == "pp" and have["pp"] == factor and config.schedule.chunks > 1:
        values |= {"schedule.kind": "1f1b", "schedule.chunks": 1}
    if {give, take} & {"pp"}:
        values["schedule.stage_layers"] = None
    yield values


def _chunks(config: RunConfig) -> Iterator[dict[str, Any]]:
    pp, now = config.parallel.pp, config.schedule.chunks
    if pp == 1:
        return
    if now > 1:
        yield {"schedule.kind": "1f1b", "schedule.chunks": 1, "schedule.stage_layers": None}
    for chunks in {2 * now, now // 2} - {0, 1}:
        if chunks <= min(_MOST_CHUNKS, resolve(config.model).layers // pp):
            yield {"schedule.kind": "interleaved", "schedule.chunks": chunks, "schedule.stage_layers": None}
