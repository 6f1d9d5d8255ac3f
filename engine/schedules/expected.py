"""The bubble that a schedule has with measured costs, to lay beside the one that was measured."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import RunConfig
from engine.layout import accumulation
from engine.schedules.actions import Costs, Work
from engine.schedules.closed_forms import bubble_fraction
from engine.schedules.named import plan
from engine.schedules.timing import simulate


def expected_bubble(config: RunConfig, seconds: Mapping[str, float]) -> tuple[float, str]:
    """The fraction with actions of so many ``seconds`` by kind of work (F, B, I, W) and messages that take none.

    Also says where it is from: the closed form or, where that needs equal costs, a simulation of the lists.
    """
    whole = seconds.get("B", seconds.get("I", 0.0) + seconds.get("W", 0.0))
    costs = Costs(
        forward=seconds.get(Work.FORWARD, 0.0),
        backward=whole,
        input=seconds.get(Work.INPUT, 0.0),
        weight=seconds.get(Work.WEIGHT, 0.0),
    )
    kind, ranks, chunks = config.schedule.kind, config.parallel.pp, config.schedule.chunks
    micro_batches = accumulation(config)
    try:
        return bubble_fraction(kind, ranks, chunks, micro_batches, costs), "closed form"
    except ValueError:
        timeline = simulate(plan(kind, ranks, chunks, micro_batches), costs)
        return timeline.bubble_fraction, "simulation of its lists"
