"""``auto`` as a value of a knob: where the ranks of a layout belong, how its layers are dealt to stages, and which
matrices every rank of tp has whole.

A study may ask for it (``parallel.placement: [null, auto]``); a run has the lists that it stands for. Ranks are placed
on links that differ, those between the islands of a lab, or of its hosts and within them; where all are alike no
placement is faster than ranks in order. Layers are dealt so that the slowest stage takes the least time: the last one
has the head beside its layers. Matrices are replicated where less is sent then (``signatures``).
``tuning.predict.placement.place`` does the first two for devices that a cluster file describes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache

import numpy as np

from engine.config.formulas.network import Shape
from engine.config.layout import Layout, layers_of_stages, layout_of
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import AUTOMATIC, RunConfig
from engine.config.validation.rules import problems
from tuning.predict.model.cases import rank_layers
from tuning.predict.placement.cost import Costs, Volumes
from tuning.predict.placement.link_traffic import head_layers, volumes_of
from tuning.predict.placement.links import lab_links, lab_of
from tuning.predict.placement.place import LOOPBACK
from tuning.predict.placement.search import place
from tuning.predict.placement.signatures.decoder import best
from tuning.predict.placement.stage_layers import slowest_stage, split_layers

PLACEMENT = "parallel.placement"
Lists = dict[str, list[int] | list[str] | None]


def choose_values(config: RunConfig, keys: Collection[str]) -> Lists:
    """A value for each of the ``keys`` of ``AUTOMATIC``: a list, or None where nothing is better than without it.

    Of a configuration that breaks a rule, and of another model than the decoder, all are None.
    """
    nothing: Lists = dict.fromkeys(keys)
    if not is_decoder(config.model):  # what others send and take, no formula knows
        return nothing
    has_automatic = any(config.value_of(key) for key in AUTOMATIC)
    plain = (
        config.with_values(nothing) if has_automatic else config
    )  # asked for every point of a space: checking costs most
    if PLACEMENT in keys and any(True for _ in problems(plain)):
        return nothing
    values: Lists = {key: _FOUND[key](plain) for key in keys}
    if not any(values.values()) or any(True for _ in problems(plain.with_values(values))):
        return nothing
    return values


def _order(config: RunConfig) -> list[int] | None:
    """Of a lab's devices, which are all alike: only its links decide."""
    shape, layout = lab_of(config), layout_of(config)
    if shape is None or not shape.is_uneven(layout.world_size):
        return None
    order = _order_of(layout, shape, volumes_of(config))
    return None if order is None else list(order)


@lru_cache(maxsize=4096)
def _order_of(layout: Layout, shape: Shape, volumes: Volumes) -> tuple[int, ...] | None:
    """Asked for every point of a space; the same for those that send as much."""
    placement = place(layout, lab_links(shape, layout.world_size, LOOPBACK), volumes)
    return None if placement.in_order else placement.devices


def _layers(config: RunConfig) -> list[int] | None:
    """On devices that are all alike, one stage a rank: of several, what counts is the sum of a rank's, and they stay
    even. A layer that is computed again takes four thirds of its time; the head does not.
    """
    stages = config.parallel.pp
    if stages == 1 or config.schedule.chunks > 1 or stages > (layers := resolve(config.model).layers):
        return None
    dealt = list(_cached_split(layers, stages, _head(config)))
    return None if dealt == [len(own_layers) for own_layers in layers_of_stages(layers, stages)] else dealt


def _head(config: RunConfig) -> float:
    """In times of a layer."""
    is_recomputed = config.memory.recompute == "full" and config.memory.recompute_layers is None
    return head_layers(config) * (3 / 4 if is_recomputed else 1)


def slowest_stage_layers(config: RunConfig) -> float:
    """What the stage that takes longest computes, in times of a layer, with the head on the last one."""
    stages = config.parallel.pp
    head = [0.0] * (stages - 1) + [_head(config)]
    return slowest_stage(rank_layers(config), [1.0] * stages, head)


def message_seconds(config: RunConfig) -> float | None:
    """What the messages of a step take by the rates of a lab's links, nothing hidden; None without links that differ,
    and where formulas do not know the model, or how many tokens documents have.
    """
    shape, layout = lab_of(config), layout_of(config)
    has_formula = is_decoder(config.model) and config.data.documents != "whole"
    if shape is None or not shape.is_uneven(layout.world_size) or not has_formula:
        return None
    order = config.parallel.placement or range(layout.world_size)
    costs = Costs(layout, lab_links(shape, layout.world_size, LOOPBACK), volumes_of(config))
    return float(costs(np.array([list(order)]))[0])


def _replicated_parts(config: RunConfig) -> list[str] | None:
    """By what is sent, over whatever links; how much memory is left is asked elsewhere."""
    comparison = best(config)
    return None if comparison is None or not comparison.parts else list(comparison.parts)


_FOUND: dict[str, Callable[[RunConfig], list[int] | list[str] | None]] = {
    PLACEMENT: _order,
    "schedule.stage_layers": _layers,
    "parallel.tp_replicated": _replicated_parts,
}


@lru_cache(maxsize=4096)
def _cached_split(layers: int, stages: int, head: float) -> tuple[int, ...]:
    return split_layers(layers, [1.0] * stages, [0.0] * (stages - 1) + [head])
