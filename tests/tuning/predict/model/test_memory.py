"""Bytes of many layouts at a time are those of the engine's own formula for each of them."""

import random

import numpy as np

from engine.config.layout import accumulation
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.footprint.footprint import largest
from tests.support.drawn import SEED
from tests.support.studies.layouts import draw
from tuning.predict.model import memory
from tuning.predict.model.cases import cases_of


def test_bytes_are_those_of_the_engine() -> None:
    random_ = random.Random(SEED)
    drawn = [draw(random_) for _ in range(1200)]
    kept = [config for config in drawn if not list(rules.problems(config)) and _has_even_rounds(config)]
    assert len(kept) > 100
    exact = np.array([largest(config).total_bytes for config in kept], np.float64)
    off = np.abs(memory.largest(cases_of(kept)) / exact - 1)
    one = np.array([config.schedule.chunks == 1 for config in kept])
    assert off[one].max() < 0.02
    assert off[~one].max() < 0.05
    assert np.median(off) < 1e-4


def _has_even_rounds(config: RunConfig) -> bool:
    pp = config.parallel.pp
    return config.schedule.chunks == 1 or (pp > 1 and accumulation(config) % pp == 0)


def test_each_part_counts() -> None:
    random_ = random.Random(3)
    base = next(
        config for config in (draw(random_, "1b") for _ in range(500)) if not list(rules.problems(config))
    )
    plain = base.with_values(
        {"parallel.zero_stage": 0, "parallel.dp": 4, "batch.global_batch": 64, "memory.recompute": "none"}
    )
    turned = [
        plain,
        plain.with_values({"parallel.zero_stage": 1}),
        plain.with_values({"memory.recompute": "full"}),
        plain.with_values({"batch.micro_batch": 2 * plain.batch.micro_batch}),
    ]
    bytes_ = memory.largest(cases_of(turned))
    assert bytes_[1] < bytes_[0]
    assert bytes_[2] < bytes_[0]
    assert bytes_[3] > bytes_[0]
