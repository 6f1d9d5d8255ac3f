"""How many steps fit into a time: as by going through the run step by step, on random settings."""

from __future__ import annotations

import random

import pytest

from engine.config.formulas.batch_ramp import sequences
from engine.config.formulas.time_budget import OverheadSeconds, longest
from engine.config.run_config import RunConfig, parse


def taken(config: RunConfig, step: int, length: int, pace: float, due: OverheadSeconds) -> float:
    """Seconds from ``step`` to the end of a run of that length, one step and what follows it at a time."""
    whole = config.with_values({"train.steps": max(1, length)})
    seconds, every, saves = 0.0, config.train.validate_every, config.checkpoint.every_steps
    saved = step if saves is not None and step % saves == 0 else -1
    for done in range(step + 1, length + 1):
        seconds += pace * sequences(whole, done - 1, done)
        if saves is not None and done % saves == 0:
            seconds, saved = seconds + due.save, done
        if every is not None and done % every == 0 and done < length:
            seconds += due.validation
    if saves is not None and saved != length:
        seconds += due.save
    return seconds + due.validation


@pytest.mark.parametrize("seed", range(60))
def test_the_longest_run_is_through_in_time_and_one_step_more_is_not(seed: int) -> None:
    draw = random.Random(seed)
    grows = seed % 4 == 0
    config = parse(
        {
            "batch": {"global_batch": 8, "ramp_from": 2 if grows else None},
            "train": {"validate_every": draw.choice((None, 3, 7, 40)), "seconds": 1.0},
            "checkpoint": {"every_steps": draw.choice((None, 4, 10))},
        }
    )
    step, pace, left = draw.randrange(0, 30), draw.uniform(0.001, 0.2), draw.uniform(0.0, 60.0)
    due = OverheadSeconds(draw.uniform(0.0, 4.0), draw.uniform(0.0, 2.0))
    found = longest(config, step, left, pace, due)
    if found == step:  # there is no time for one more
        assert taken(config, step, step + 1, pace, due) > left
    else:
        assert taken(config, step, found, pace, due) <= left + 1e-9
        assert taken(config, step, found + 1, pace, due) > left or grows


def test_a_run_without_time_left_has_no_more_steps() -> None:
    config = parse({"batch": {"global_batch": 8, "micro_batch": 2}, "train": {"seconds": 1.0}})
    assert longest(config, 12, -3.0, 0.1, OverheadSeconds(1.0, 0.0)) == 12
