"""Layers of uneven stages: as good as the best of all splits, even where that costs nothing, within memory."""

import itertools

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.layout import layers_of_stages
from tuning.predict.placement.stage_layers import slowest_stage, split_layers


def all_splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(np.diff([0, *cut, layers]).tolist()) for cut in cuts]


@pytest.mark.parametrize("seed", range(40))
def test_no_split_has_a_faster_slowest_stage(seed: int) -> None:
    generator = np.random.default_rng(seed)
    stages = int(generator.integers(1, 6))
    layers = int(generator.integers(stages, 14))
    seconds = generator.uniform(0.5, 4.0, stages).tolist()
    extra = generator.uniform(0.0, 3.0, stages).tolist()
    most = generator.integers(max(1, layers // stages), layers + 1, stages).tolist()
    legal = [
        split
        for split in all_splits(layers, stages)
        if all(count <= room for count, room in zip(split, most, strict=True))
    ]
    if not legal:
        with pytest.raises(InputError, match=f"most_layers=.*: have no room for {layers} layers"):
            split_layers(layers, seconds, extra, most)
        return
    found = split_layers(layers, seconds, extra, most)
    assert found in legal
    best = min(slowest_stage(split, seconds, extra) for split in legal)
    assert slowest_stage(found, seconds, extra) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("layers", "stages"), [(4, 4), (5, 2), (7, 3), (8, 3), (13, 5), (96, 12), (11, 8)])
def test_equal_stages_get_the_layers_that_the_engine_deals(layers: int, stages: int) -> None:
    usual = tuple(len(own) for own in layers_of_stages(layers, stages))
    assert split_layers(layers, [0.1] * stages) == usual


def test_layers_follow_speed() -> None:
    assert split_layers(8, [1.0, 2.0, 2.0]) == (4, 2, 2)
    assert split_layers(8, [2.0, 1.0, 2.0]) == (2, 4, 2)


def test_the_head_takes_layers_from_the_last_stage() -> None:
    assert split_layers(8, [1.0, 1.0], extra_layers=[0.0, 2.0]) == (5, 3)


def test_memory_bounds_a_fast_stage() -> None:
    assert split_layers(8, [1.0, 2.0, 2.0], most=[3, 8, 8]) == (3, 3, 2)


def test_of_equally_slow_splits_the_most_even_is_taken() -> None:
    """The last stage's head decides; the first ones could be split as 1 + 5 just as well."""
    assert split_layers(7, [1.0, 1.0, 1.0], extra_layers=[0.0, 0.0, 9.0]) == (3, 3, 1)


@pytest.mark.parametrize(
    ("layers", "seconds", "text"),
    [
        (2, [1.0, 1.0, 1.0], "model.layers=2: 3 stages need one each"),
        (4, [1.0, 0.0], "layer_seconds=0.0: is no time of a layer"),
        (4, [float("nan"), 1.0], "layer_seconds=nan: is no time of a layer"),
    ],
)
def test_what_cannot_be_split_is_refused(layers: int, seconds: list[float], text: str) -> None:
    with pytest.raises(InputError, match=text):
        split_layers(layers, seconds)
