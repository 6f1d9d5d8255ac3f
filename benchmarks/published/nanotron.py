"""What nanotron, the trainer of the playbook's runs, does with a configuration: who gets which layers, what it refuses.

Its rules were read in github.com/huggingface/nanotron commit e24d2483a4e5 (models/base.py, build_model;
pipeline_parallel/engine.py) and agree with what ran and what failed in the table.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuning.predict.model.cases import Cases

#: Blocks behind the layers: the last norm, the head, a cast and the loss; only the head counts.
_NORM, _HEAD, _LOSS = 1, 2, 4
_EQUAL = 1e-9


class Deal(NamedTuple):
    """Layers of each stage, and the stages that have the head and the loss."""

    layers: tuple[int, ...]
    head: int
    loss: int


@functools.cache
def deal(layers: int, layer_cost: float, head_cost: float, stages: int) -> Deal:
    """Blocks in order, each stage until it has its share of the cost; the head costs, other blocks do not.

    Late stages can be left with nothing: a stage takes one block at least, so early ones can get ahead of their shares.
    """
    costs = [0.0, *[layer_cost] * layers, 0.0, head_cost, 0.0, 0.0]
    shares = sum(costs) / stages * np.arange(1, stages + 1) * (1 - _EQUAL)
    stage, place = 0, []
    for reached in np.cumsum(costs):
        place.append(stage)
        stage += int(reached >= shares[stage] and stage < stages - 1)
    counts = np.bincount(place[1 : layers + 1], minlength=stages)
    return Deal(tuple(counts.tolist()), place[layers + _HEAD], place[layers + _LOSS])


def dealt(cases: Cases) -> Cases:
    """The same with ``last_layers`` and ``other_layers`` (the first stage's, which are the most) as nanotron deals."""
    deals = _deals(cases)
    first = np.array([float(one.layers[0]) for one in deals])
    last = np.array([float(one.layers[-1]) for one in deals])
    return cases.put(other_layers=first, last_layers=last)


def refused(cases: Cases) -> dict[str, NDArray[np.bool_]]:
    """Rows that end before their first step, by the reason."""
    pp = cases.pp
    return {
        "fewer micro-batches than stages less one: its 1F1B asserts that": cases.micro_batches < pp - 1,
        "the loss is not on the last stage: too few layers for so many stages": np.array(
            [one.loss for one in _deals(cases)]
        )
        != pp - 1,
        "attention heads cannot be split by tp": (cases.heads % cases.tp != 0),
    }


def refuses(cases: Cases) -> NDArray[np.bool_]:
    """Rows that it refuses for any reason."""
    every: NDArray[np.bool_] = np.any(list(refused(cases).values()), axis=0)
    return every


def _deals(cases: Cases) -> list[Deal]:
    layer = 4 * cases.hidden**2 + cases.mlp_matrices * cases.hidden * cases.ffn_hidden
    columns = (cases.layers, layer, cases.vocabulary * cases.hidden, cases.pp)
    return [
        deal(int(layers), float(cost), float(head), int(stages))
        for layers, cost, head, stages in zip(*(column.tolist() for column in columns), strict=True)
    ]
