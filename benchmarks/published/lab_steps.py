"""Seconds of a step in the lab: ranks of one machine, a host each, on links of a known rate, over gloo.

Trials tell the constants in two rounds: seconds of a core first, which do not depend on how cores are shared or how
fast links are; then, with those held, seconds of whole steps, played by events on shared cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.published import core_work
from benchmarks.published.core_work import CoreWork
from benchmarks.published.gloo import OF_STEPS, START, CoreConstants, byte_seconds, load_of, seconds_of
from benchmarks.published.shared_cores import simulate_shared
from engine.config.run_config import RunConfig
from tuning.predict.fit.finished_runs import Trial
from tuning.predict.fit.least_squares import fit
from tuning.predict.model.cases import Array
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.simulate import step_of
from tuning.predict.simulation.step import Collective
from tuning.predict.simulation.step_result import SimulatedStep
from tuning.predict.traffic.calls import Call

_CORE = Accelerator("a core", {}, 0, 0.0)


def calibrate(trials: Sequence[Trial], cores: int, start: CoreConstants = START) -> CoreConstants:
    """Constants fitted to trials on a machine of so many cores.

    Raises:
        InputError: there is no trial, one is none of one rank a host, or no formula says what it sends.
    """
    known = core_work.fitted(trials, start)
    works = [CoreWork.of(trial.config) for trial in trials]
    taken = np.array([trial.seconds for trial in trials])

    def left(constants: CoreConstants) -> Array:
        found: Array = np.log(
            np.array([simulate_work(work, cores, constants).seconds for work in works]) / taken
        )
        return found

    return fit(left, known, OF_STEPS).constants


def simulate(config: RunConfig, cores: int, constants: CoreConstants) -> SimulatedStep:
    """One step of a configuration whose lab gives each rank a host.

    Raises:
        InputError: it does not, its links have no rate, or no formula says what it sends.
    """
    return simulate_work(CoreWork.of(config), cores, constants)


def simulate_work(work: CoreWork, cores: int, constants: CoreConstants) -> SimulatedStep:
    """The same, of work that is known already."""
    rate = work.rate
    byte = byte_seconds(constants, rate) * (1 + constants.unseen)

    def price(call: Call) -> float:
        return seconds_of(call, rate, constants)

    def cost(call: Collective) -> float:
        return (
            byte
            * load_of(Call(call.operation, call.axis, call.dtype, call.group_size, round(call.bytes))).handled
        )

    step = step_of(work.config, work.stages(constants), work.optimizer(constants), price, backend="gloo")
    border = byte * step.border_bytes(0) / 2 if work.plan.stages > 1 else 0.0
    machine = Machine(
        _cluster(step.places * step.width, Link(constants.latency_seconds, rate * constants.link_share))
    )
    return simulate_shared(step, machine, cores * constants.cores_share, cost, border)


def _cluster(hosts: int, link: Link) -> Cluster:
    return Cluster("the lab", (Group(hosts, 1, _CORE, link, link, "lab"),))
