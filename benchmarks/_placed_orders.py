"""Holmes (arXiv 2312.03549) and Pipette (2405.18093): what ``auto`` chooses, beside every other choice, in the lab.

*Orders*: two stages of two data ranks on four hosts, two islands whose links carry 400 and 100 Mbit/s, 50 between
them. Exchanging the data ranks of both stages changes nothing, so of 24 orders 12 differ; all are trained. Chosen
is one for each of the 24 ways to shuffle the hosts over the islands. Predicted is what messages take by the rates of
the links, and the step of the same ranks in a lab without rates, measured beside.
*Cuts*: eight layers on two stages, every one of the seven cuts, while another process takes half of the second core.
*Overlap*: ZeRO 1 over dp across the islands, its gathers beside the next forward and not, and again (A/A).

Everything runs on warm ranks, in random order, once a round; a time is the median over rounds of the median step.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._placed import PinnedPool, busy
from benchmarks._places import agreement
from benchmarks._ratio import Ratio, ratio
from engine.config.layout import layout_of
from engine.config.network import shape_of
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from tuning.predict.placement.automatic import PLACEMENT, chosen, message_seconds
from tuning.predict.placement.link_traffic import head_layers, volumes_of
from tuning.predict.placement.links import Links, Shared, of_lab
from tuning.predict.placement.place import LOOPBACK
from tuning.predict.placement.search import place
from tuning.predict.placement.stage_layers import split_layers

NAME, KEPT = "systems_placed", table.RESULTS / "systems_placed.json"
ISLANDS = {"hosts": 4, "islands": 2, "rates_mbit": [400.0, 100.0], "between_mbit": 50.0}
NO_RATES = "no rates"
BESIDE, APART, AGAIN = "gathers beside forward", "not overlapped", "gathers beside forward, again"
#: What is chosen may be so much slower than the best; a prediction may be so far off.
NEAR, FORETOLD = 0.05, 0.15
#: Of the two cores, in seconds for a layer: two processes that want one have half of it each.
SPEEDS, LAYERS = (1.0, 2.0), 8
_STEPS, _WARMUP = 4, 1
HEADER = ["what", "setting", "predicted, s", "measured, s", "of rounds", "over the fastest", "chosen"]


def _config(**sections: Any) -> RunConfig:
    train = {"steps": _STEPS + _WARMUP, "warmup": _WARMUP, "validation_batches": 0}
    plain = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": train, "device": "cpu"}
    return parse(plain | sections)


def orders() -> dict[str, RunConfig]:
    """Those that differ, by their devices, and ranks in order without rates."""
    plain = _config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS)
    found = dict[str, RunConfig]()
    for one in itertools.permutations(range(4)):
        if one[0] < one[1]:  # with both stages' data ranks exchanged it is the same
            found[" ".join(map(str, one))] = plain.with_values({PLACEMENT: list(one)})
    return found | {NO_RATES: _config(parallel={"pp": 2, "dp": 2}, lab={"hosts": 4})}


def cuts() -> dict[str, RunConfig]:
    """Every one of ``LAYERS`` layers over two stages."""
    model = {"layers": LAYERS, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn_hidden": 768}
    return {
        f"{first} {LAYERS - first}": _config(
            parallel={"pp": 2},
            model=model,
            lab={"hosts": 2, "islands": 2},
            schedule={"stage_layers": [first, LAYERS - first]},
        )
        for first in range(1, LAYERS)
    }


def overlaps() -> dict[str, RunConfig]:
    """ZeRO 1 in buckets of 1 MB, its gathers waited for at once or beside the next forward."""
    plain = _config(parallel={"dp": 4, "zero_stage": 1}, lab=ISLANDS, overlap={"bucket_mb": 1.0})
    beside = plain.with_values({"overlap.gather_with_optimizer": True})
    return {APART: plain, BESIDE: beside, AGAIN: beside}


PARTS = {"orders": orders, "cuts": cuts, "overlap": overlaps}


def chosen_order() -> str:
    """What ``auto`` stands for in this lab: ranks in order where it finds nothing better."""
    asked = chosen(_config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS), [PLACEMENT])[PLACEMENT]
    return _name([int(one) for one in asked or range(4)])


def chosen_of_shuffled() -> list[str]:
    """What the search finds where device d is host ``shuffle[d]``, for every shuffle, as an order of the hosts."""
    plain = _config(parallel={"pp": 2, "dp": 2}, lab=ISLANDS)
    shape, layout, volumes = shape_of(plain.lab), layout_of(plain), volumes_of(plain)
    assert shape is not None
    links, found = of_lab(shape, 4, LOOPBACK), list[str]()
    for shuffle in itertools.permutations(range(4)):
        at = np.ix_(shuffle, shuffle)
        moved = Links(
            links.alpha_seconds[at],
            links.bytes_per_second[at],
            tuple(links.nodes[host] for host in shuffle),
            tuple(links.islands[host] for host in shuffle),
            tuple(
                Shared(tuple(shuffle.index(host) for host in one.devices), one.bytes_per_second)
                for one in links.shared
            ),
        )
        found.append(_name([shuffle[device] for device in place(layout, moved, volumes).devices]))
    return found


def _name(order: Sequence[int]) -> str:
    """With the data ranks in the order in which they are measured."""
    first, second, third, fourth = order
    return " ".join(map(str, order if first < second else (second, first, fourth, third)))


def chosen_cut() -> str:
    """By the speeds of the cores and the head on the last stage."""
    head = head_layers(next(iter(cuts().values())))
    return " ".join(map(str, split_layers(LAYERS, SPEEDS, (0.0, head))))


def messages(config: RunConfig) -> float:
    """Seconds of a step's messages by the links' rates, nothing hidden."""
    found = message_seconds(config)
    assert found is not None
    return found


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, and keep it after every round; of the overlap twice as many."""
    kept = table.kept(KEPT)
    for part, settings in PARTS.items():
        told = kept.setdefault(part, {"rounds": 0, "seconds": {}, "losses": {}})
        wanted = rounds * (2 if part == "overlap" else 1)
        if told["rounds"] < wanted and part == "cuts":
            cores = sorted(os.sched_getaffinity(0))
            if len(cores) < 2:
                raise SystemExit("cuts need two cores")
            with busy(cores[1]):
                _rounds(kept, part, settings(), wanted, PinnedPool(cores[:2]))
        elif told["rounds"] < wanted:
            _rounds(kept, part, settings(), wanted, LocalPool())
    return kept


def _rounds(
    kept: dict[str, Any], part: str, settings: dict[str, RunConfig], wanted: int, pool: LocalPool
) -> None:
    told = kept[part]
    with tempfile.TemporaryDirectory() as home, Session(Path(home), pool) as session:
        while told["rounds"] < wanted:
            taken = dict[str, tuple[float, list[float | None]]]()
            for name in random.sample(list(settings), len(settings)):
                outcome, summary = session.execute(settings[name], {}, lambda: False)
                if outcome.ending is not Ending.COMPLETED or summary.step_seconds is None:
                    raise SystemExit(f"{part} {name}: {outcome}")
                taken[name] = summary.step_seconds.median, list(summary.losses)
            for name, (seconds, losses) in taken.items():
                told["seconds"].setdefault(name, []).append(seconds)
                told["losses"][name] = losses
            told["rounds"] += 1
            table.keep(KEPT, kept)
            print(f"{part}: round {told['rounds']} of {wanted}", flush=True)


class Orders:
    """The orders as they were measured, beside what was predicted."""

    def __init__(self, kept: dict[str, Any]) -> None:
        measured, configs = seconds(kept, "orders"), orders()
        base = measured.pop(NO_RATES)
        self.predicted = {name: base + messages(configs[name]) for name in measured}
        self.count, least = len(measured), min(measured.values())
        off = [abs(self.predicted[name] / measured[name] - 1) for name in measured]
        self.within, self.worst = sum(one <= FORETOLD for one in off), max(off)
        self.chosen = max(measured[name] for name in (chosen_order(), *chosen_of_shuffled())) / least
        self.slowest = max(measured.values()) / least
        taken = np.array([kept["orders"]["seconds"][name] for name in measured])
        self.rank = agreement(np.array([round(self.predicted[name], 9) for name in measured]), taken)
        losses = [[one for one in row if one is not None] for row in kept["orders"]["losses"].values()]
        self.apart = float(np.ptp(np.array(losses), axis=0).max())


def cut(kept: dict[str, Any], name: str) -> float:
    """Seconds of a cut over those of the best."""
    measured = seconds(kept, "cuts")
    return measured[name] / min(measured.values())


def overlap(kept: dict[str, Any], name: str) -> Ratio:
    """Seconds of a way to gather over those of the overlapped one."""
    measured = kept["overlap"]["seconds"]
    return ratio(np.array(measured[name]), np.array(measured[BESIDE]))


def seconds(kept: dict[str, Any], part: str) -> dict[str, float]:
    """Setting -> the median over rounds."""
    return {name: float(np.median(each)) for name, each in kept[part]["seconds"].items()}


def is_measured(kept: dict[str, Any], part: str) -> bool:
    """Whether it has a round."""
    return bool(kept.get(part, {}).get("rounds"))


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """One for each setting that was measured, the fastest of a part first."""
    predicted, found = Orders(kept).predicted, []
    best = {"orders": {chosen_order(), *chosen_of_shuffled()}, "cuts": {chosen_cut()}, "overlap": set[str]()}
    for part in (part for part in PARTS if is_measured(kept, part)):
        measured = seconds(kept, part)
        least = min(one for name, one in measured.items() if name != NO_RATES)
        for name, one in sorted(measured.items(), key=lambda pair: pair[1]):
            each = kept[part]["seconds"][name]
            told = f"{predicted[name]:.3f}" if part == "orders" and name in predicted else ""
            over = "" if name == NO_RATES else f"{one / least:.2f}"
            found.append([part, name, told, f"{one:.3f}", f"{min(each):.3f} to {max(each):.3f}", over,
                          "chosen" if name in best[part] else ""])  # fmt: skip
    return found


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    counts = ", ".join(f"{kept[part]['rounds']} of {part}" for part in PARTS if is_measured(kept, part))
    return f"Ranks placed and layers dealt in a lab of two islands, beside every other way; rounds: {counts}"
