"""The numbers behind a drawing of a pipeline schedule: one bar for each action of the very list that ranks execute."""

from __future__ import annotations

from typing import NamedTuple

from engine.config.layout import accumulation
from engine.config.run_config import RunConfig
from engine.parallel.schedules.actions import Costs, Plan, Work
from engine.parallel.schedules.registry import plan
from engine.parallel.schedules.simulate import in_flight, simulate

#: A backward takes twice a forward's time; split, each part takes as long as a forward.
USUAL = Costs(forward=1.0, backward=2.0, input=1.0, weight=1.0)
WORDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.INPUT: "backward, input",
    Work.WEIGHT: "backward, weights",
}


class Bar(NamedTuple):
    """One action: its rank, kind, chunk of the rank (0 is nearest the input), and time in forwards."""

    rank: int
    work: Work
    micro_batch: int
    stage: int
    chunk: int
    start: float
    length: float


class ScheduleSeries(NamedTuple):
    """Bars of all ranks; time is counted in forwards of one stage."""

    kind: str
    ranks: int
    chunks: int
    micro_batches: int
    bars: list[Bar]
    length: float
    bubble_fraction: float
    #: Peak activations of each rank, in stages x micro-batches.
    in_flight: tuple[float, ...]

    @property
    def title(self) -> str:
        """What is drawn, with its two figures of merit."""
        sizes = f"{self.ranks} ranks x {self.chunks} chunk{'s' * (self.chunks > 1)}"
        peak = max(self.in_flight)
        return (
            f"{self.kind}: {sizes}, {self.micro_batches} micro-batches; "
            f"bubble {100 * self.bubble_fraction:.0f} %, at most {peak:g} stage activations on a rank"
        )


def schedule_series(kind: str, ranks: int, chunks: int, micro_batches: int) -> ScheduleSeries:
    """A schedule at the usual costs.

    Raises:
        ValueError: a number that the kind cannot use; KeyError: an unknown kind.
    """
    return series_of(plan(kind, ranks, chunks, micro_batches))


def series_of_run(config: RunConfig) -> ScheduleSeries | None:
    """The schedule of a run; None where there is only one stage."""
    schedule, ranks = config.schedule, config.parallel.pp
    if ranks * schedule.chunks == 1:
        return None
    return schedule_series(schedule.kind, ranks, schedule.chunks, accumulation(config))


def series_of(chosen: Plan) -> ScheduleSeries:
    """Bars and figures of merit of any plan."""
    timeline = simulate(chosen, USUAL)
    bars = []
    for rank, spans in enumerate(timeline.spans):
        own = chosen.stages_of(rank)
        for action, start, end in spans:
            chunk = own.index(action.stage)
            bars.append(Bar(rank, action.work, action.micro_batch, action.stage, chunk, start, end - start))
    return ScheduleSeries(
        chosen.kind,
        chosen.ranks,
        chosen.chunks,
        chosen.micro_batches,
        bars,
        timeline.seconds,
        timeline.bubble_fraction,
        in_flight(chosen),
    )
