"""How many layers each stage gets, where stages are not equally fast. Pure.

Holmes (arXiv 2312.03549) gives stages of a faster network more layers. The rule in its text could not be read, so this
is our own: the split whose slowest stage takes the least time, exactly, by dynamic programming over stages and layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.config.errors import InputError
from tuning.predict.placement.links import Floats

#: Sums of the same numbers in another order differ by less than this part.
_EQUAL = 1e-9


def split_layers(
    layers: int,
    seconds: Sequence[float],
    extra_layers: Sequence[float] | None = None,
    most: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Layers of each stage, one at least, so that the slowest stage takes the least time.

    ``seconds`` are of one layer on each stage. ``extra_layers`` is what a stage computes beside its layers, such as the
    head, in times of a layer; ``most`` is what its memory has room for. Of splits that are equal in that, the most even
    one is taken (least sum of squares), and of those the one with more layers on early stages.

    Raises:
        InputError: there are fewer layers than stages, a time is not above zero, or memory has no room for all.
    """
    stages = len(seconds)
    room = np.minimum(layers, layers if most is None else np.array(most))
    room = np.broadcast_to(room, stages)
    _check(layers, seconds, room.tolist())
    extra = extra_layers or [0.0] * stages
    times = [_times(layers, seconds[stage], extra[stage], int(room[stage])) for stage in range(stages)]
    slowest = np.concatenate([[-np.inf], np.full(layers, np.inf)])
    for layer_seconds in times:
        slowest = np.maximum(slowest[:, None], layer_seconds).min(axis=0)
    limit = slowest[layers] * (1 + _EQUAL)
    return _most_even(
        layers, [np.where(layer_seconds <= limit, layer_seconds**2, np.inf) for layer_seconds in times]
    )


def slowest_stage(
    counts: Sequence[int], seconds: Sequence[float], extra_layers: Sequence[float] | None = None
) -> float:
    """Seconds of the stage that takes longest."""
    extra = extra_layers or [0.0] * len(counts)
    return max(
        (count + added_layers) * layer_seconds
        for count, layer_seconds, added_layers in zip(counts, seconds, extra, strict=True)
    )


def _times(layers: int, seconds: float, extra: float, room: int) -> Floats:
    """[first, end]: of a stage with the layers from first to end, infinite where it cannot have them."""
    counts = np.arange(layers + 1) - np.arange(layers + 1)[:, None]
    return np.where((counts >= 1) & (counts <= room), (counts + extra) * seconds, np.inf)


def _most_even(layers: int, squares: list[Floats]) -> tuple[int, ...]:
    total = np.concatenate([[0.0], np.full(layers, np.inf)])
    firsts = []
    for stage_squares in squares:
        sums = total[:, None] + stage_squares
        total = sums.min(axis=0)
        near = sums <= total * (1 + _EQUAL)
        firsts.append(layers - near[::-1].argmax(axis=0))  # the last of equals: fewer layers on late stages
    ends = [layers]
    for first in reversed(firsts):
        ends.append(int(first[ends[-1]]))
    return tuple(int(count) for count in np.diff(ends[::-1]))


def _check(layers: int, seconds: Sequence[float], room: list[int]) -> None:
    if layers < len(seconds):
        raise InputError("model.layers", layers, f"{len(seconds)} stages need one each; lower parallel.pp")
    if bad := [layer_seconds for layer_seconds in seconds if not 0 < layer_seconds < np.inf]:
        raise InputError(
            "layer_seconds", bad[0], "is no time of a layer in seconds; measure it on each device"
        )
    if min(room) < 1 or sum(room) < layers:
        raise InputError("most_layers", room, f"have no room for {layers} layers, one on each stage at least")
