"""Holmes (arXiv 2312.03549): groups over networks by where their members are, beside one network for all, in the lab.

Four hosts on two islands: a card that reaches all (40 Mbit/s, 20 between islands), and a second one inside of islands
(160 Mbit/s). Two stages of two data ranks, once with data ranks on one island, whose pipelines cross, and once with
stages of a pipeline on one island, whose gradients cross. Work is paced (``_paced``), messages are real.

Settings are taken in random order, once a round; a time is the median of the steps on the slowest rank, without
records. Bytes are those of the hosts' counters, without headers. Predicted is the step played event by event.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from benchmarks import _ranks as ranks
from benchmarks import _table as table
from benchmarks._paced import costs, paced_engine
from benchmarks._placed_orders import LAYER, MODEL, seconds_of
from benchmarks._ratio import Ratio, ratio
from engine.comm.context import RankContext
from engine.config.formulas.network import DATA, INSIDE
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from profilers.analysis.wire_counters import ETHERNET_HEADER_BYTES
from profilers.system import procfs
from tuning.predict.model.hardware import Accelerator, Cluster, Group
from tuning.predict.placement.links import lab_links, lab_of
from tuning.predict.placement.place import LOOPBACK
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.simulate import step_of

NAME, KEPT = "systems_networks", table.RESULTS / "systems_networks.json"
LAB = {"hosts": 4, "islands": 2, "rate_mbit": 40.0, "between_mbit": 20.0, "inside_mbit": 160.0}
BY_MEMBERS, ONE, AGAIN = "by members", "one for all", "by members, again"
ORDERS = {"data ranks on one island": [0, 1, 2, 3], "stages on one island": [0, 2, 1, 3]}
#: How far off a prediction may be.
FORETOLD = 0.15
_SETTLING, _STEPS = 1, 4
HEADER = ["on one island", "networks", "predicted, s", "measured, s", "of rounds", "second card, MB a step",
          "first card, MB a step"]  # fmt: skip


class Answer(NamedTuple):
    """Of one rank: seconds and losses of its steps, and MB a step that its host sent over each card."""

    seconds: list[float]
    losses: list[float | None]
    inside: float
    data: float


def settings() -> dict[str, RunConfig]:
    """By order and networks."""
    plain = parse(
        {
            "model": MODEL,
            "data": {"sequence_length": 64},
            "batch": {"global_batch": 16, "micro_batch": 2},
            "parallel": {"dp": 2, "pp": 2},
            "train": {"steps": 8, "validation_batches": 0, "step_timeout_seconds": 300.0},
            "device": "cpu",
            "lab": LAB,
        }
    )
    found: dict[str, RunConfig] = {}
    for name, order in ORDERS.items():
        placed = plain.with_values({"parallel.placement": order})
        one = placed.with_values({"network.inside": DATA})
        found |= {f"{name}; {kind}": one if kind == ONE else placed for kind in (BY_MEMBERS, ONE, AGAIN)}
    return found


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, and keep it after every round."""
    kept = table.kept(KEPT)
    told = kept.setdefault("networks", {"rounds": 0, "seconds": {}, "losses": {}, "megabytes": {}})
    while told["rounds"] < rounds:
        for name in random.sample(list(settings()), len(settings())):
            answers = [Answer(*one) for one in ranks.on_cores(settings()[name], _steps)]
            slowest = np.array([one.seconds for one in answers]).max(axis=0)
            told["seconds"].setdefault(name, []).append(float(np.median(slowest)))
            told["losses"][name] = next(one.losses for one in answers if None not in one.losses)
            told["megabytes"][name] = [
                sum(getattr(one, card) for one in answers) for card in ("inside", "data")
            ]
        told["rounds"] += 1
        table.keep(KEPT, kept)
        print(f"networks: round {told['rounds']} of {rounds}", flush=True)
    return kept


def _steps(rank: RankContext) -> tuple[list[float], list[float | None], float, float]:
    engine, log = paced_engine(rank, rank.config, LAYER), ranks.Silent()
    taken, losses = list[float](), list[float | None]()
    ranks.switch_recording(rank, False)
    for step in range(_SETTLING + _STEPS):
        dist.barrier()
        if step == _SETTLING:
            before = _sent()
        taken.append(seconds_of(partial(engine.one_step, log)))
        losses.append(log.loss)
    dist.barrier()
    time.sleep(0.05)  # what was sent last is counted
    after = _sent()
    inside, data = ((after[card] - before[card]) / 1e6 / _STEPS for card in (INSIDE, DATA))
    return taken[_SETTLING:], losses, inside, data


def _sent() -> dict[str, float]:
    """Bytes of payload that this host has sent over each card."""
    found = procfs.interfaces(Path("/proc/thread-self/net/dev").read_bytes())
    return {
        card: found[card].sent_bytes - ETHERNET_HEADER_BYTES * found[card].sent_packets
        for card in (INSIDE, DATA)
    }


def predicted(config: RunConfig) -> float:
    """Seconds of a step, played event by event."""
    shape, order = lab_of(config), config.parallel.placement
    assert shape is not None
    assert order is not None
    links = lab_links(shape, layout_of(config).world_size, LOOPBACK)
    device = Accelerator("a paced core", {}, 0, 0.0)
    hosts = Cluster("the lab", (Group(links.devices, 1, device, LOOPBACK, LOOPBACK, "lab"),))
    step = step_of(config, costs(config, LAYER), backend="gloo")
    return simulate(step, Machine(hosts, tuple(order), links=links)).seconds


def gain(kept: dict[str, Any], order: str, rival: str) -> Ratio:
    """Seconds of a rival over those of networks by members."""
    taken = kept["networks"]["seconds"]
    return ratio(np.array(taken[f"{order}; {rival}"]), np.array(taken[f"{order}; {BY_MEMBERS}"]))


def worst(kept: dict[str, Any]) -> float:
    """How far a prediction is off, at most."""
    taken = kept["networks"]["seconds"]
    return max(abs(predicted(one) / float(np.median(taken[name])) - 1) for name, one in settings().items())


def loss_apart(kept: dict[str, Any]) -> float:
    """How far the losses of settings are from each other, at most."""
    return float(np.ptp(np.array(list(kept["networks"]["losses"].values())), axis=0).max())


def bytes_apart(kept: dict[str, Any], order: str) -> float:
    """By what share both cards together carry more or less than the one card alone."""
    sent = kept["networks"]["megabytes"]
    return float(abs(sum(sent[f"{order}; {BY_MEMBERS}"]) / sum(sent[f"{order}; {ONE}"]) - 1))


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """One for each setting."""
    found, told = [], kept["networks"]
    for name, config in settings().items():
        each, (inside, data) = told["seconds"][name], told["megabytes"][name]
        found.append([*name.split("; "), f"{predicted(config):.3f}", f"{np.median(each):.3f}",
                      f"{min(each):.3f} to {max(each):.3f}", f"{inside:.2f}", f"{data:.2f}"])  # fmt: skip
    return found


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    return (
        "Groups over networks by where their members are, in a lab of two islands with second cards; work is paced to "
        f"{1e3 * LAYER:g} ms a layer forward; {kept['networks']['rounds']} rounds"
    )
