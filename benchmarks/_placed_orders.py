"""Holmes (arXiv 2312.03549) and Pipette (2405.18093): what ``auto`` chooses, beside every other choice, in the lab.

Four ranks would have a device each and here share two cores, so work is paced (``_paced``): a layer takes ``LAYER``
seconds forward and twice that backward, and the links of the lab, which are real, are as slow in proportion.

*Orders*: two stages of two data ranks on four hosts, two islands whose links carry 80 and 20 Mbit/s, 10 between them.
Exchanging the data ranks of both stages changes nothing, so of 24 orders 12 differ; all are trained. Chosen is one for
each of the 24 ways to shuffle the hosts over the islands, by the seconds that messages take by the rates of the links.
Predicted is the step played event by event on those links.
*Cuts*: eight layers on two stages, every one of the seven cuts; the second device takes twice as long for a layer.
*Overlap*, not paced: ZeRO 1 over dp across the islands, its gathers beside the next forward and not, and again (A/A).

Settings are taken in random order, once a round; a time is the median over rounds of the median step on the slowest
rank, without records.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from benchmarks import _ranks as ranks
from benchmarks import _table as table
from benchmarks._paced import costs, paced_engine
from benchmarks._places import agreement
from benchmarks._ratio import Ratio, ratio, wall_seconds
from engine.comm.context import RankContext
from engine.config.formulas.network import Shape, shape_of
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from tuning.predict.model.hardware import Accelerator, Cluster, Group
from tuning.predict.placement.automatic import PLACEMENT, choose_values, message_seconds
from tuning.predict.placement.link_traffic import head_layers, volumes_of
from tuning.predict.placement.links import Links, SharedLink, lab_links
from tuning.predict.placement.place import LOOPBACK
from tuning.predict.placement.search import place
from tuning.predict.placement.stage_layers import split_layers
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.simulate import step_of

NAME, KEPT = "systems_placed", table.RESULTS / "systems_placed.json"
ISLANDS = {"hosts": 4, "islands": 2, "rates_mbit": [80.0, 20.0], "between_mbit": 10.0}
OVERLAP_ISLANDS = {"hosts": 4, "islands": 2, "rates_mbit": [400.0, 100.0], "between_mbit": 50.0}
BESIDE, APART, AGAIN = "gathers beside forward", "not overlapped", "gathers beside forward, again"
#: What is chosen may be so much slower than the best; a prediction may be so far off.
NEAR, FORETOLD = 0.05, 0.15
#: Seconds of a layer forward; of the two devices of a cut, in times of those.
LAYER, SPEEDS, LAYERS = 0.01, (1.0, 2.0), 8
#: Steps of an order in a round that are thrown away and that count; of the overlap.
_SETTLING, _STEPS, _WARMUP = 1, 3, 1
MODEL = {"layers": LAYERS, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 176}
HEADER = ["what", "setting", "messages by the rates, s", "predicted, s", "measured, s", "of rounds",
          "over the fastest", "chosen"]  # fmt: skip


def _config(**sections: Any) -> RunConfig:
    train = {"steps": 4, "warmup": 1, "validation_batches": 0, "step_timeout_seconds": 300.0}
    plain = {
        "model": MODEL,
        "data": {"sequence_length": 64},
        "batch": {"global_batch": 16, "micro_batch": 2},
        "train": train,
        "device": "cpu",
    }
    return parse(plain | sections)


def orders() -> dict[str, RunConfig]:
    """Those that differ, by their devices."""
    plain = _config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS)
    found = dict[str, RunConfig]()
    for one in itertools.permutations(range(4)):
        if one[0] < one[1]:  # with both stages' data ranks exchanged it is the same
            found[" ".join(map(str, one))] = plain.with_values({PLACEMENT: list(one)})
    return found


def cuts() -> dict[str, RunConfig]:
    """Every one of ``LAYERS`` layers over two stages."""
    lab = {"hosts": 2, "islands": 2}
    return {
        f"{first} {LAYERS - first}": _config(
            parallel={"pp": 2}, lab=lab, schedule={"stage_layers": [first, LAYERS - first]}
        )
        for first in range(1, LAYERS)
    }


def overlaps() -> dict[str, RunConfig]:
    """ZeRO 1 in buckets of 1 MB, its gathers waited for at once or beside the next forward."""
    train = {"steps": 4 + _WARMUP, "warmup": _WARMUP, "validation_batches": 0}
    plain = parse(
        {
            "batch": {"global_batch": 16, "micro_batch": 2},
            "train": train,
            "device": "cpu",
            "parallel": {"dp": 4, "zero_stage": 1},
            "lab": OVERLAP_ISLANDS,
            "overlap": {"bucket_mb": 1.0},
        }
    )
    beside = plain.with_values({"overlap.gather_with_optimizer": True})
    return {APART: plain, BESIDE: beside, AGAIN: beside}


def chosen_order() -> str:
    """What ``auto`` stands for in this lab: ranks in order where it finds nothing better."""
    asked = choose_values(_config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS), [PLACEMENT])[PLACEMENT]
    return _name([int(one) for one in asked or range(4)])


def chosen_of_shuffled() -> list[str]:
    """What the search finds where device d is host ``shuffle[d]``, for every shuffle, as an order of the hosts."""
    plain = _config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS)
    layout, volumes, links = layout_of(plain), volumes_of(plain), _links(plain)
    found = list[str]()
    for shuffle in itertools.permutations(range(4)):
        at = np.ix_(shuffle, shuffle)
        moved = Links(
            links.alpha_seconds[at],
            links.bytes_per_second[at],
            tuple(links.nodes[host] for host in shuffle),
            tuple(links.islands[host] for host in shuffle),
            tuple(
                SharedLink(tuple(shuffle.index(host) for host in one.devices), one.bytes_per_second)
                for one in links.shared
            ),
        )
        found.append(_name([shuffle[device] for device in place(layout, moved, volumes).devices]))
    return found


def _links(config: RunConfig) -> Links:
    shape = shape_of(config.lab)
    assert isinstance(shape, Shape)
    return lab_links(shape, layout_of(config).world_size, LOOPBACK)


def _name(order: Sequence[int]) -> str:
    """With the data ranks in the order in which they are measured."""
    first, second, third, fourth = order
    return " ".join(map(str, order if first < second else (second, first, fourth, third)))


def chosen_cut() -> str:
    """By the speeds of the devices and the head on the last stage."""
    return " ".join(map(str, split_layers(LAYERS, SPEEDS, (0.0, _cut_head()))))


def _cut_head() -> float:
    return head_layers(next(iter(cuts().values())))


def messages(config: RunConfig) -> float:
    """Seconds of a step's messages by the links' rates, nothing hidden: what orders are chosen by."""
    found = message_seconds(config)
    assert found is not None
    return found


def predicted(part: str) -> dict[str, float]:
    """Seconds of a step of each setting, played event by event."""
    if part == "cuts":
        head, each = _cut_head(), [LAYER * speed for speed in SPEEDS]
        return {name: _played(one, costs(one, each, head)) for name, one in cuts().items()}
    return {name: _played(one, costs(one, LAYER)) for name, one in orders().items()}


def _played(config: RunConfig, seconds: Any) -> float:
    links = _links(config)
    device = Accelerator("a paced core", {}, 0, 0.0)
    hosts = Cluster("the lab", (Group(links.devices, 1, device, LOOPBACK, LOOPBACK, "lab"),))
    order = config.parallel.placement or range(links.devices)
    return simulate(
        step_of(config, seconds, backend="gloo"), Machine(hosts, tuple(order), links=links)
    ).seconds


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, and keep it after every round; of the cuts and the overlap twice as many."""
    kept = table.kept(KEPT)
    _orders(
        kept.setdefault("orders", {"rounds": 0, "seconds": {}, "losses": {}}),
        rounds,
        partial(table.keep, KEPT, kept),
    )
    if "cuts" not in kept:
        kept["cuts"] = {"rounds": 2 * rounds, "seconds": _cuts(2 * rounds)}
        table.keep(KEPT, kept)
    _overlap(
        kept.setdefault("overlap", {"rounds": 0, "seconds": {}}), 2 * rounds, partial(table.keep, KEPT, kept)
    )
    return kept


def _orders(told: dict[str, Any], wanted: int, keep: Callable[[], None]) -> None:
    settings = orders()
    while told["rounds"] < wanted:
        for name in random.sample(list(settings), len(settings)):
            answers = ranks.on_cores(settings[name], _steps_of_order)
            seconds = np.array([taken for taken, _ in answers]).max(axis=0)
            told["seconds"].setdefault(name, []).append(float(np.median(seconds)))
            told["losses"][name] = next(losses for _, losses in answers if None not in losses)
        told["rounds"] += 1
        keep()
        print(f"orders: round {told['rounds']} of {wanted}", flush=True)


def _steps_of_order(rank: RankContext) -> tuple[list[float], list[float | None]]:
    """Seconds and losses of the steps that count; a loss is None where the last stage is another rank's."""
    engine, log = paced_engine(rank, rank.config, LAYER), ranks.Silent()
    taken, losses = list[float](), list[float | None]()
    ranks.switch_recording(rank, False)
    for _ in range(_SETTLING + _STEPS):
        dist.barrier()
        taken.append(seconds_of(partial(engine.one_step, log)))
        losses.append(log.loss)
    return taken[_SETTLING:], losses


def seconds_of(work: Callable[[], None]) -> float:
    """By the clock on the wall."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _cuts(rounds: int) -> dict[str, list[float]]:
    answers = ranks.on_cores(next(iter(cuts().values())), _steps_of_cuts, rounds)
    return {name: found.tolist() for name, found in wall_seconds(answers, cuts()).items()}


def _steps_of_cuts(rank: RankContext, rounds: int) -> Any:
    layer, head = LAYER * SPEEDS[rank.rank], _cut_head()
    engines = {name: paced_engine(rank, config, layer, head) for name, config in cuts().items()}
    return ranks.in_turn(
        {name: ranks.EngineSteps(one, recorded=False) for name, one in engines.items()}, rounds
    )


def _overlap(told: dict[str, Any], wanted: int, keep: Callable[[], None]) -> None:
    settings = overlaps()
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        while told["rounds"] < wanted:
            taken = dict[str, float]()
            for name in random.sample(list(settings), len(settings)):
                outcome, summary = session.execute(settings[name], {}, lambda: False)
                if outcome.ending is not Ending.COMPLETED or summary.step_seconds is None:
                    raise SystemExit(f"overlap {name}: {outcome}")
                taken[name] = summary.step_seconds.median
            for name, seconds in taken.items():
                told["seconds"].setdefault(name, []).append(seconds)
            told["rounds"] += 1
            keep()
            print(f"overlap: round {told['rounds']} of {wanted}", flush=True)


class Measured:
    """Settings of a part as they were measured, beside what was predicted of them and what was chosen."""

    def __init__(self, kept: dict[str, Any], part: str, named: Sequence[str]) -> None:
        measured, foretold = seconds(kept, part), predicted(part)
        self.count, least = len(measured), min(measured.values())
        off = [abs(foretold[name] / measured[name] - 1) for name in measured]
        self.within, self.worst = sum(one <= FORETOLD for one in off), max(off)
        self.chosen = max(measured[name] for name in named) / least
        self.slowest = max(measured.values()) / least
        taken = np.array([kept[part]["seconds"][name] for name in measured])
        self.rank = agreement(np.array([round(foretold[name], 9) for name in measured]), taken)


def loss_apart(kept: dict[str, Any]) -> float:
    """How far the losses of orders are from each other, at most."""
    return float(np.ptp(np.array(list(kept["orders"]["losses"].values())), axis=0).max())


def overlap(kept: dict[str, Any], name: str) -> Ratio:
    """Seconds of a way to gather over those of the overlapped one."""
    measured = kept["overlap"]["seconds"]
    return ratio(np.array(measured[name]), np.array(measured[BESIDE]))


def seconds(kept: dict[str, Any], part: str) -> dict[str, float]:
    """Setting -> the median over rounds."""
    return {name: float(np.median(each)) for name, each in kept[part]["seconds"].items()}


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """One for each setting that was measured, the fastest of a part first."""
    best = {"orders": {chosen_order(), *chosen_of_shuffled()}, "cuts": {chosen_cut()}}
    sent = {name: f"{messages(one):.3f}" for name, one in orders().items()}
    found = []
    for part in kept:
        measured = seconds(kept, part)
        least, foretold = min(measured.values()), predicted(part) if part in best else {}
        for name, one in sorted(measured.items(), key=lambda pair: pair[1]):
            each = kept[part]["seconds"][name]
            told = f"{foretold[name]:.3f}" if name in foretold else ""
            found.append([part, name, sent.get(name, "") if part == "orders" else "", told, f"{one:.3f}",
                          f"{min(each):.3f} to {max(each):.3f}", f"{one / least:.2f}",
                          "chosen" if name in best.get(part, ()) else ""])  # fmt: skip
    return found


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    counts = ", ".join(f"{found['rounds']} of {part}" for part, found in kept.items())
    return (
        "Ranks placed and layers dealt in a lab of two islands, beside every other way; work is paced to "
        f"{1e3 * LAYER:g} ms a layer forward; rounds: {counts}"
    )
