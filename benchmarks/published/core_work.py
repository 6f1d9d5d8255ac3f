"""What each rank of a configuration computes and sends in a step, in seconds of a core. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.published.gloo import CORE, OF_WORK, START, CoreConstants, byte_seconds, load_of, rate_of
from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.footprint.activations import Part
from engine.schedules.actions import Costs, Plan
from tuning.predict.fit.finished_runs import Trial
from tuning.predict.fit.least_squares import fit
from tuning.predict.model import compute
from tuning.predict.model.cases import Array, Cases, cases_of
from tuning.predict.model.compute import Device
from tuning.predict.traffic.calls import Call
from tuning.predict.traffic.layers import parameters_of
from tuning.predict.traffic.rank import Pipeline, traffic_of, why_not_known


class Handled(NamedTuple):
    """Messages of a rank in a step, hops of its rings of cp, and the mean of the bytes that it sends and receives."""

    messages: float
    hops: float
    bytes: float


@dataclass(frozen=True)
class CoreWork:
    """One configuration, on links of ``rate`` bytes/s.

    What is by pipeline rank has an entry for each: its first rank stands for the others.
    """

    config: RunConfig
    pipeline: Pipeline
    rate: float
    device: Device = CORE

    @classmethod
    def of(cls, config: RunConfig, device: Device = CORE) -> CoreWork:
        """That of a configuration which keeps every rule.

        Raises:
            InputError: no formula says what it sends, or the lab does not give each rank a host and links a rate.
        """
        if (reason := why_not_known(config)) is not None:
            raise InputError("config", reason, "no formula says what is sent; set it to its default")
        return cls(config, Pipeline.from_config(config), rate_of(config), device)

    @property
    def plan(self) -> Plan:
        """Its schedule."""
        return self.pipeline.plan

    @cached_property
    def cases(self) -> Cases:
        """The configuration as a row."""
        return cases_of([self.config], 1)

    @cached_property
    def handled(self) -> tuple[Handled, ...]:
        """What each pipeline rank handles."""
        layout = layout_of(self.config)
        each = layout.world_size // layout.pp
        return tuple(handled(traffic_of(self.pipeline, place * each).calls) for place in range(layout.pp))

    @cached_property
    def updated(self) -> tuple[float, ...]:
        """Parameters that each pipeline rank's optimizer updates on one rank."""
        layout, parts = layout_of(self.config), self.pipeline.parts
        share = layout.inner if layout.zero_stage else 1
        elements = [sum(one.elements for one in parameters_of(self.config, part)) for part in parts]
        return tuple(
            sum(elements[stage] for stage in self.plan.stages_of(place)) / share for place in range(layout.pp)
        )

    def stages(self, constants: CoreConstants) -> list[Costs]:
        """Core seconds of each action on each stage, its messages included but for their bytes."""
        return [
            self._stage(part, constants, self._of_messages(stage, constants))
            for stage, part in enumerate(self.pipeline.parts)
        ]

    def optimizer(self, constants: CoreConstants) -> list[float]:
        """Core seconds of each pipeline rank's update, and of what a step has besides."""
        moved = compute.update(self.cases, np.array(self.updated), self.device, constants)
        return [float(seconds) + constants.step_seconds for seconds in moved]

    def seconds(self, constants: CoreConstants) -> Array:
        """Core seconds of a step on each pipeline rank."""
        costs, updates, found = self.stages(constants), self.optimizer(constants), list[float]()
        byte = byte_seconds(constants, self.rate)
        for place, actions in enumerate(self.plan.actions):
            computed = sum(costs[action.stage].seconds(action.work) for action in actions)
            found.append(computed + updates[place] + self.handled[place].bytes * byte)
        return np.array(found)

    def _of_messages(self, stage: int, constants: CoreConstants) -> float:
        """Of one action: a rank's messages, dealt evenly to its actions."""
        place = self.plan.rank_of[stage]
        found = self.handled[place]
        whole = found.messages * constants.message_seconds + found.hops * constants.hop_seconds
        return whole / len(self.plan.actions[place])

    def _stage(self, part: Part, constants: CoreConstants, messages: float) -> Costs:
        ahead = compute.forward(self.cases, self.device, constants)
        again = compute.recomputed_flops(self.cases, ahead)
        forward = float((ahead.device + ahead.floor)[0])
        repeated = float((again.device + again.floor)[0])
        head = float(compute.head_forward(self.cases, self.device, constants)[0]) * part.is_last
        each = constants.action_seconds + messages
        once, more = part.layers * forward + head, part.layers * repeated
        return Costs(once + each, 2 * once + more + each, once + more + each, once + each)


def fitted(trials: Sequence[Trial], start: CoreConstants = START, device: Device = CORE) -> CoreConstants:
    """Constants of computation that give the core seconds which trials took on their ranks.

    Raises:
        InputError: there is no trial, or no formula says what one of them sends.
    """
    if not trials:
        raise InputError("trials", 0, "there is no finished run with measured steps; run some layouts first")
    works = [CoreWork.of(trial.config, device) for trial in trials]
    taken = np.concatenate([of_places(trial) for trial in trials])

    def left(constants: CoreConstants) -> Array:
        found: Array = np.log(np.concatenate([work.seconds(constants) for work in works]) / taken)
        return found

    return fit(left, start, OF_WORK).constants


def handled(calls: Sequence[Call]) -> Handled:
    """Of all calls of a rank."""
    loads = [load_of(call) for call in calls]
    hops = sum(call.axis == "cp" and call.operation == "send" for call in calls)
    return Handled(sum(one.messages for one in loads), hops, sum(one.handled for one in loads))


def of_places(trial: Trial) -> Array:
    """Core seconds that a trial took on each pipeline rank: means over the ranks of a stage."""
    found: Array = np.array(trial.cpu_seconds).reshape(trial.config.parallel.pp, -1).mean(axis=1)
    return found
