"""A configuration played on a target: seconds of each stage in closed form, everything that is sent by events."""

from __future__ import annotations

from dataclasses import replace

from engine.config.run_config import RunConfig
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules.actions import Costs
from tuning.predict.events import simulate
from tuning.predict.events.simulate import Simulated
from tuning.predict.model import compute, step_time
from tuning.predict.model.constants import Constants
from tuning.predict.model.from_config import cases_of
from tuning.predict.model.hardware import Cluster, Group, Link
from tuning.predict.model.step_time import updated_elements
from tuning.predict.target import Target


def rehearse(config: RunConfig, target: Target, jitter: float = 0.0, seed: int = 0) -> Simulated:
    """One step of a configuration that keeps every rule; ``jitter`` as in ``simulate.Machine``.

    Raises:
        InputError: the target has no rate for its format or too few devices, or no formula says what is sent.
    """
    constants = target.calibrated.constants
    cases = cases_of([config], target.devices_per_node)
    device = target.machine(config.precision).device
    update = float(compute.update(cases, updated_elements(cases), device, constants)[0])
    step = simulate.step_of(config, stage_costs(config, target), update)
    reached = _reached(target.cluster, constants)
    return simulate.simulate(step, simulate.Machine(reached, jitter=jitter, seed=seed))


def stage_costs(config: RunConfig, target: Target) -> list[Costs]:
    """Seconds of each stage's work without what it sends; the last has the head. A split backward is halved."""
    constants = target.calibrated.constants
    machine = target.machine(config.precision)
    cases = cases_of([config], target.devices_per_node)
    forward, backward = (
        float(seconds[0]) for seconds in step_time.block_seconds(cases, machine.device, constants)
    )
    head = float(compute.head_forward(cases, machine.device, constants)[0])
    costs = []
    for part in parts_of(config, plan_of(config)):
        ahead = part.layers * forward + head * part.is_last
        back = part.layers * backward + 2 * head * part.is_last
        costs.append(Costs(ahead, back, back / 2, back / 2))
    return costs


def _reached(cluster: Cluster, constants: Constants) -> Cluster:
    """The cluster with what its links reach of their figures."""
    groups = tuple(_group(group, constants) for group in cluster.groups)
    across = cluster.across and _link(cluster.across, constants.between_share, constants.between_seconds)
    return replace(cluster, groups=groups, across=across)


def _group(group: Group, constants: Constants) -> Group:
    inside = _link(group.inside, constants.inside_share, constants.inside_seconds)
    between = _link(group.between, constants.between_share, constants.between_seconds)
    pairs = group.pairs and _link(group.pairs, constants.inside_share, constants.inside_seconds)
    return replace(group, inside=inside, between=between, pairs=pairs)


def _link(link: Link, share: float, seconds: float) -> Link:
    return Link(link.alpha_seconds + seconds, link.bytes_per_second * share)
