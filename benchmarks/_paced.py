"""Ranks whose layers take a time that is set: as many devices as there are ranks, on however few cores.

Each layer takes its seconds forward and twice that backward, of which its real products take a few per cent, so that a
busy machine changes little; what ranks send is real, over links that are as slow in proportion.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks import _ranks as ranks
from engine.comm.context import RankContext
from engine.config.run_config import RunConfig
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules.actions import Costs


def paced_engine(
    rank: RankContext, config: RunConfig, layer_seconds: float, head_layers: float = 0.0
) -> ranks.Engine:
    """Whose layers take so long each, and its head, if it has it, as many layers."""
    engine = ranks.Engine(replace(rank, config=config))
    parts = parts_of(config, plan_of(config))
    for stage, replica in engine.stages.stages.items():
        seconds = layer_seconds * (len(replica.model.blocks) + head_layers * parts[stage].is_last)
        for name, factor in (("forward", 1), ("backward", 2)):
            setattr(replica, name, _paced(getattr(replica, name), factor * seconds))
    return engine


def costs(config: RunConfig, layer_seconds: float | list[float], head_layers: float = 0.0) -> list[Costs]:
    """What the stages of such ranks take; seconds of a layer are each stage's own, or the same for all."""
    parts, found = parts_of(config, plan_of(config)), []
    each = layer_seconds if isinstance(layer_seconds, list) else [layer_seconds] * len(parts)
    for part, seconds in zip(parts, each, strict=True):
        ahead = seconds * (part.layers + head_layers * part.is_last)
        found.append(Costs(ahead, 2 * ahead))
    return found


def _paced(work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Takes so long, if it does not take longer."""

    def paced(*arguments: Any) -> Any:
        end = time.perf_counter() + seconds
        found = work(*arguments)
        time.sleep(max(0.0, end - time.perf_counter()))
        return found

    return paced
