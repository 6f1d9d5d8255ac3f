"""How many steps fit into a time, with the saves and the losses on held-out text that are due beside them. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from engine.config.formulas.batch_ramp import sequences_of_run, steps_for
from engine.config.run_config import RunConfig


class OverheadSeconds(NamedTuple):
    """Seconds of a loss on held-out text, and of a save."""

    validation: float
    save: float

    def seconds(self, config: RunConfig, step: int, length: int) -> float:
        """Of all that is due after ``step`` in a run of that length, its end included."""
        every, saves = config.train.validate_every, config.checkpoint.every_steps
        losses = 1 + (0 if every is None else max(0, (length - 1) // every - step // every))
        saved = 0 if saves is None else max(0, math.ceil(length / saves) - step // saves)
        return losses * self.validation + saved * self.save


def longest(config: RunConfig, step: int, seconds_left: float, pace: float, due: OverheadSeconds) -> int:
    """The steps of the longest run that is through in ``seconds_left`` from ``step`` on, at a ``pace`` of so many a
    sequence, with all that is due until then.
    """

    def fits(length: int) -> bool:
        return steps_for(config, step, (seconds_left - due.seconds(config, step, length)) / pace) >= length

    low, high = step, steps_for(config, step, max(0.0, seconds_left) / pace) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def nearest(
    config: RunConfig, step: int, seconds_left: float, pace: float, due: OverheadSeconds, period: int = 1
) -> int:
    """The steps, whole rounds of ``period``, of the run that ends nearest to ``seconds_left`` from ``step`` on, and at
    most one step after them: what is due with one round more can take longer than the round.
    """

    def beyond(length: int) -> float:
        return (
            pace * sequences_of_run(config, step, length) + due.seconds(config, step, length) - seconds_left
        )

    before = longest(config, step, seconds_left, pace, due) // period * period
    after = before + period
    over = beyond(after)
    return after if over <= pace * config.batch.global_batch and over < -beyond(before) else before
