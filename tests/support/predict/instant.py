"""Simulated steps on links without a rate, and the activations they hold in time."""

from __future__ import annotations

from engine.schedules.actions import Work
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.step_result import SimulatedStep


def instant(ranks: int, delay: float = 0.0) -> Machine:
    """As many devices on links that take ``delay`` seconds for a message, whatever its size, and never wait."""
    device = Accelerator("a device", {}, 0, 0.0)
    link = Link(delay, float("inf"))
    return Machine(Cluster("instant links", (Group(1, ranks, device, link, link, "none"),)))


def peak_in_flight(simulated: SimulatedStep, weight_share: float = 1.0) -> tuple[float, ...]:
    """Most activations on each rank of the first pipeline, as they come and go in time.

    As ``engine.schedules.simulate.peak_in_flight``, which counts the lists.
    """
    step = simulated.step
    shares = {Work.FORWARD: 1.0, Work.BACKWARD: -1.0}
    shares |= {Work.INPUT: weight_share - 1.0, Work.WEIGHT: -weight_share}
    change = {(work, stage): share for work, share in shares.items() for stage in range(step.plan.stages)}
    places = range(0, step.places, step.replicas)
    return tuple(max(level for _, level in simulated.levels(place, change)) for place in places)
