"""Orders of ranks and splits of layers in a lab of two islands: the order of their times, predicted and measured.

    python -m benchmarks.placement [--rounds 5] [--steps 5] [--families orders splits] [--save]

Orders: four ranks on four hosts, links of 400 Mbit/s on the first island and 100 on the second, 50 between them. The
same model and batch are trained with every order of a family, so that only messages differ; these are predicted from
the links' rates alone. Splits: two stages on two hosts, a core for each, and the second core has another process to
serve; so a layer takes twice as long there. Every order and split is a whole run on warm ranks, all of them once a
round, in an order drawn at random. A time is the median over rounds of the runs' median steps.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._placed import PinnedPool, busy
from benchmarks._places import agreement, places
from engine.config.formulas.network import Shape, shape_of
from engine.config.layout import accumulation, layers_of_stages, layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run import netns
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.predict.placement import crossing_bytes
from tuning.predict.placement.cost import Costs
from tuning.predict.placement.link_traffic import head_layers, volumes_of
from tuning.predict.placement.links import lab_links
from tuning.predict.placement.place import LOOPBACK
from tuning.predict.placement.search import crossing_groups
from tuning.predict.placement.stage_layers import slowest_stage, split_layers

NAME = "placement"
ISLANDS = {"hosts": 4, "islands": 2, "rates_mbit": [400.0, 100.0], "between_mbit": 50.0}
PAIR = {"hosts": 2, "islands": 2}
#: Layout -> orders: device of each rank, ranks in order first.
ORDERS: dict[tuple[int, int], list[tuple[int, ...]]] = {
    (2, 2): [(0, 1, 2, 3), (2, 3, 0, 1), (0, 2, 1, 3), (0, 2, 3, 1)],
    (4, 1): [(0, 1, 2, 3), (2, 3, 1, 0), (0, 2, 3, 1), (2, 0, 1, 3), (0, 2, 1, 3)],
    (1, 4): [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3)],
}
SPLITS = [(4, 4), (7, 1), (6, 2), (5, 3), (3, 5), (2, 6)]
#: A core that two processes want gives half of itself to each.
SPEEDS = (1.0, 2.0)
HEADER = (
    "layout",
    "device of each rank",
    "layers",
    "crosses islands",
    "predicted",
    "measured, s",
    "of rounds",
    "place predicted",
    "place measured",
    "MB over the bridge, predicted",
    "with headers, measured",
)


@dataclass(slots=True)
class Case:
    """One order or split. ``predicted`` are seconds of messages, or times of a layer; ``bridge`` bytes per step."""

    family: str
    config: RunConfig
    order: tuple[int, ...]
    predicted: float
    bridge: float
    crosses: str
    taken: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)


def orders(steps: int) -> list[Case]:
    """Every order of every layout."""
    return [
        _order(_config({"pp": pp, "dp": dp, "placement": list(order)}, ISLANDS, steps), order)
        for (pp, dp), listed in ORDERS.items()
        for order in listed
    ]


def splits(steps: int) -> list[Case]:
    """Every split of eight layers over two stages; the even one first."""
    return [_split(steps, split) for split in SPLITS]


def _config(parallel: dict[str, Any], lab: dict[str, Any], steps: int, **more: Any) -> RunConfig:
    return parse(
        {
            "parallel": parallel,
            "batch": {"global_batch": 16, "micro_batch": 2},
            "train": {
                "steps": steps + 2,
                "warmup": 2,
                "validation_batches": 0,
                "step_timeout_seconds": 120.0,
            },
            "lab": lab,
            "device": "cpu",
        }
        | more
    )


def _order(config: RunConfig, order: tuple[int, ...]) -> Case:
    layout, links = layout_of(config), lab_links(_shape(config), len(order), LOOPBACK)
    volumes = volumes_of(config)
    crossing = crossing_groups(layout, order, links.islands)
    return Case(
        "orders",
        config,
        order,
        float(Costs(layout, links, volumes)(np.array([order]))[0]),
        sum(crossing_bytes(layout, order, links.islands, volumes).values()),
        ", ".join(axis for axis, groups in crossing.items() if groups),
    )


def _split(steps: int, split: tuple[int, ...]) -> Case:
    model = {"layers": sum(split), "hidden": 256, "heads": 4, "kv_heads": 4, "ffn_hidden": 768}
    schedule = {"stage_layers": list(split)}
    config = _config({"pp": 2}, PAIR, steps, model=model, schedule=schedule)
    rounds = accumulation(config) + config.parallel.pp - 1
    predicted = rounds * slowest_stage(split, SPEEDS, (0.0, head_layers(config)))
    links, layout = lab_links(_shape(config), 2, LOOPBACK), layout_of(config)
    bridge = sum(crossing_bytes(layout, (0, 1), links.islands, volumes_of(config)).values())
    return Case("splits", config, (0, 1), predicted, bridge, "pp")


def _shape(config: RunConfig) -> Shape:
    shape = shape_of(config.lab)
    assert shape is not None
    return shape


def measure(cases: Sequence[Case], rounds: int, pool: LocalPool) -> None:
    """Each case once a round, in an order drawn at random."""
    shuffle = random.Random(0)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), pool) as session:
        for turn in range(rounds):
            for case in shuffle.sample(cases, len(cases)):
                outcome, summary = session.execute(case.config, {}, lambda: False)
                assert outcome.ending is Ending.COMPLETED, outcome
                _keep(case, summary)
            print(f"{cases[0].family}: round {turn + 1} of {rounds}", file=sys.stderr, flush=True)


def _keep(case: Case, summary: RunSummary) -> None:
    assert summary.step_seconds is not None and summary.interfaces is not None
    case.taken.append(summary.step_seconds.median)
    sent = sum(row.sent_bytes_per_second for row in summary.interfaces if row.interface == "uplink")
    case.sent.append(sent * float(np.mean(summary.step_samples)))


def seconds(case: Case) -> float:
    """Of a step: the median over rounds."""
    return float(np.median(case.taken))


def rows(cases: Sequence[Case]) -> Iterator[list[str]]:
    """A line for each case, by predicted time."""
    expected = places([round(case.predicted, 9) for case in cases])
    found = places([seconds(case) for case in cases])
    for index in np.argsort(expected, kind="stable"):
        case = cases[index]
        parallel = case.config.parallel
        yield [
            f"pp {parallel.pp} x dp {parallel.dp}",
            " ".join(map(str, case.order)),
            " ".join(map(str, _layers(case))),
            case.crosses,
            f"{case.predicted:.3f} s" if case.family == "orders" else f"{case.predicted:.1f} layers",
            f"{seconds(case):.3f}",
            f"{min(case.taken):.3f} to {max(case.taken):.3f}",
            f"{expected[index]:g}",
            f"{found[index]:g}",
            f"{case.bridge / 1e6:.2f}",
            f"{np.median(case.sent) / 1e6:.2f}",
        ]


def _agreement(cases: Sequence[Case]) -> str:
    predicted = np.array([round(case.predicted, 9) for case in cases])
    return agreement(predicted, np.array([case.taken for case in cases]))


def _layers(case: Case) -> list[int]:
    given = case.config.schedule.stage_layers
    shape = resolve(case.config.model)
    return [len(own) for own in layers_of_stages(shape.layers, case.config.parallel.pp, given)]


def notes(cases: Sequence[Case]) -> Iterator[str]:
    """How well the order was foretold, family by family, and what the best gains over ranks in order."""
    yield f"- {cases[0].family}: Spearman of all {len(cases)}: {_agreement(cases)}."
    for key, group in itertools.groupby(
        cases, lambda case: (case.config.parallel.pp, case.config.parallel.dp)
    ):
        family = list(group)
        chosen = min(family, key=lambda case: case.predicted)
        fastest = min(seconds(case) for case in family)
        plain = "ranks in order" if chosen.family == "orders" else "the even split"
        slowest = max(seconds(case) for case in family)
        yield (
            f"- pp {key[0]} x dp {key[1]}: Spearman {_agreement(family)}; the first choice takes "
            f"{seconds(chosen) / fastest:.2f} of the fastest's time, {plain} {seconds(family[0]) / fastest:.2f}, "
            f"the slowest {slowest / fastest:.2f}."
        )


def _with_cores(cases: Sequence[Case], rounds: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("splits need two cores")
    with busy(cores[1]):
        measure(cases, rounds, PinnedPool(cores[:2]))


def main() -> None:
    """Measure the families that are asked for, and print them beside what was predicted."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=5, help="measured steps of each run")
    arguments.add_argument(
        "--families", nargs="+", choices=["orders", "splits"], default=["orders", "splits"]
    )
    given = arguments.parse_args()
    if reason := netns.unavailability():
        raise SystemExit(f"no network namespaces: {reason}")
    lines, said = list[list[str]](), list[str]()
    for family in given.families:
        cases = orders(given.steps) if family == "orders" else splits(given.steps)
        if family == "orders":
            measure(cases, given.rounds, LocalPool())
        else:
            _with_cores(cases, given.rounds)
        lines += rows(cases)
        said += notes(cases)
        if family == "splits":
            best = split_layers(8, SPEEDS, (0.0, head_layers(cases[0].config)))
            said.append(f"- The split that `split_layers` gives: {' '.join(map(str, best))}.")
    title = f"Placement in a lab of two islands: predicted and measured order, {given.rounds} rounds"
    text = table.show(NAME, title, HEADER, lines, given.save)
    print("\n".join(said))
    if given.save:
        (table.RESULTS / f"{NAME}.md").write_text(f"{text}\n" + "\n".join(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
