"""SkipPipe (arXiv 2502.19913) here: full pipelines, and stages left out without a plan and with one, in the lab.

Four stages would have a device each, and here share two cores; so work is paced: each layer takes ``LAYER`` seconds
forward and twice that backward, of which its real products take a few per cent (a busy machine changes little), and
messages go over real links, as slow in proportion. Steps of all kinds are taken in turn, in random order, and simulated
event by event from the same lists. Losses are of runs that are not paced: at equal tokens, and after the steps that fit
in the time.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import _ranks as ranks
from benchmarks import _table as table
from benchmarks._paced import costs, paced_engine
from benchmarks._ratio import Ratio, Taken, ratio, wall_seconds
from engine.comm.context import RankContext
from engine.config.run_config import RunConfig, parse
from engine.footprint.footprint import parts_of, plan_of
from engine.session import Session
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.simulate import step_of
from tuning.predict.simulation.step_result import SimulatedStep

NAME, KEPT = "systems_partial_pipeline", table.RESULTS / "systems_partial_pipeline.json"
#: Seconds of a layer forward; Mbit/s of a host's link; messages of which the latency is taken.
LAYER, RATE, MESSAGES = 0.040, 10.0, 50
#: A simulation is right within this.
WITHIN = 0.15
SEEDS = 3
PLAIN, AGAIN, LOOSE, PLANNED = "full", "full, again (A/A)", "skip, unplanned", "skip, planned"
#: As many layers as a micro-batch computes where stages are left out.
SMALLER = "full, 8 layers"
_LONG_INNER, _SKIP = {"schedule.stage_layers": [2, 4, 4, 2]}, {"schedule.skip_share": 0.25}
_UNPLANNED = {"schedule.skip_order": "unplanned"}
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    AGAIN: {},
    "full, layers as below": _LONG_INNER,
    LOOSE: _LONG_INNER | _SKIP | _UNPLANNED,
    PLANNED: _LONG_INNER | _SKIP,
    SMALLER: {"model.layers": 8},
    "skip, unplanned, even stages": _SKIP | _UNPLANNED,
    "skip, planned, even stages": _SKIP,
}
#: Those of which losses are taken.
LEARNED = (PLAIN, LOOSE, PLANNED, SMALLER)


class Size(NamedTuple):
    """Of the whole measurement: rounds of steps, and steps of the full pipeline's run."""

    rounds: int = 10
    steps: int = 160


def config_of(kind: str, **more: Any) -> RunConfig:
    """A kind's."""
    tree = {
        "model": {"layers": 12, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 176},
        "data": {"sequence_length": 64},
        "batch": {"micro_batch": 1, "global_batch": 8},
        "parallel": {"pp": 4},
        "train": {"learning_rate": 3e-3, "learning_rate_warmup": 20, "validation_batches": 16,
                  "timeout_seconds": 3600.0, "step_timeout_seconds": 300.0},
        "device": "cpu",
    }  # fmt: skip
    return parse(tree).with_values(
        KINDS[kind] | {key.replace("__", "."): value for key, value in more.items()}
    )


def run(size: Size, kept_at: Path = KEPT, kinds: tuple[str, ...] = tuple(KINDS)) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each part."""
    kept = table.kept(kept_at)
    if "seconds" not in kept:
        kept |= _steps(size.rounds, kinds)
        table.keep(kept_at, kept)
    for kind in kinds:
        if kind not in kept.setdefault("bytes", {}):
            kept["bytes"][kind] = _bytes(kind)
            table.keep(kept_at, kept)
    times = {kind: float(np.median(kept["seconds"][kind])) for kind in kinds}
    for seed in range(SEEDS):
        for kind in (kind for kind in LEARNED if kind in kinds):
            key = f"{kind}, seed {seed}"
            if key not in kept.setdefault("loss", {}):
                kept["loss"][key] = _loss(kind, seed, size.steps, times[PLAIN] / times[kind])
                table.keep(kept_at, kept)
    return kept


def in_lab(kind: str, **more: Any) -> RunConfig:
    """On a host for each rank."""
    return config_of(kind, lab__hosts=4, lab__rate_mbit=RATE, **more)


def _steps(rounds: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Wall seconds of each kind's steps, on the slowest rank; a link's latency, and how busy the machine was."""
    answers = ranks.on_cores(in_lab(PLAIN), _on_rank, rounds, kinds)
    seconds = wall_seconds([taken for taken, _ in answers], kinds)
    return {
        "latency": float(np.median(answers[0][1])),
        "load": os.getloadavg()[0],
        "seconds": {kind: found.tolist() for kind, found in seconds.items()},
    }


def _on_rank(rank: RankContext, rounds: int, kinds: tuple[str, ...]) -> tuple[list[Taken], list[float]]:
    latencies = latencies_of(rank)
    steps: dict[str, ranks.Steps] = {
        kind: ranks.EngineSteps(paced_engine(rank, in_lab(kind), LAYER), recorded=False) for kind in kinds
    }
    return ranks.in_turn(steps, rounds), latencies


def latencies_of(rank: RankContext) -> list[float]:
    """Half of what each message of one element took to the next host and back; only ranks 0 and 1 take part."""
    channel, element, found = rank.groups.pp, torch.zeros(1), list[float]()
    assert channel is not None
    for _ in range(MESSAGES if rank.rank < 2 else 0):
        began = time.perf_counter()
        for source in (0, 1):
            if rank.rank == source:
                channel.send(element, 1 - source).wait()
            else:
                channel.receive(element, source).wait()
        found.append((time.perf_counter() - began) / 2)
    return found


def _bytes(kind: str) -> dict[str, float]:
    """What a rank sends in a step, by formula and by its interface's counter."""
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        outcome, summary = session.execute(
            in_lab(kind, train__steps=24, train__validation_batches=0), {}, lambda: False
        )
    assert outcome.good, outcome
    return {"formula": summary.wire_bytes_per_step or 0.0, "counted": summary.wire_bytes_measured or 0.0}


def _loss(kind: str, seed: int, steps: int, faster: float) -> dict[str, float]:
    """On held-out text, after as many steps as the full pipeline has, and after those that fit into its time."""
    more = max(steps, round(steps * faster))
    asked = {"train__steps": more, "train__seed": seed, "train__validate_every": steps}
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        outcome, summary = session.execute(config_of(kind, **asked), {}, lambda: False)
    assert outcome.good, outcome
    by_step = {row.step: row.loss for row in summary.quality}
    early = summary.partial_loss or by_step[more]
    return {"tokens": by_step[steps], "seconds": by_step[more], "partial": early, "steps": float(more)}


def simulated(kind: str, latency: float) -> float:
    """Seconds of a step of a kind."""
    return played(in_lab(kind), latency).seconds


def played(config: RunConfig, latency: float) -> SimulatedStep:
    """A paced step by events, of the list that ranks execute, with the lab's links."""
    link = Link(latency, RATE * 1e6 / 8)
    hosts = Cluster("the lab", (Group(4, 1, Accelerator("a paced core", {}, 0, 0.0), link, link, "lab"),))
    return simulate(step_of(config, costs(config, LAYER), backend="gloo"), Machine(hosts))


HEADER = [
    "kind",
    "layers of stages",
    "layers that a micro-batch computes",
    "measured (median), ms",
    "simulated, ms",
    "simulated / measured",
    "its time / the full one's",
    "bytes counted / by formula",
    "loss at equal tokens, by seed",
    "loss at equal seconds, by seed",
    "with stages left out, by seed",
]


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each kind."""
    seconds = {kind: np.array(values) for kind, values in kept["seconds"].items()}
    return [_row(kept, kind, seconds) for kind in seconds]


def _row(kept: dict[str, Any], kind: str, seconds: dict[str, np.ndarray]) -> list[str]:
    config, chosen = config_of(kind), plan_of(config_of(kind))
    layers = [part.layers for part in parts_of(config, chosen)]
    each = sum(count * share for count, share in zip(layers, chosen.trained_shares, strict=True))
    median, expected, sent = (
        float(np.median(seconds[kind])),
        simulated(kind, kept["latency"]),
        kept["bytes"][kind],
    )
    losses = [of for seed in range(SEEDS) if (of := kept["loss"].get(f"{kind}, seed {seed}"))]

    def told(name: str) -> str:
        return ", ".join(f"{of[name]:.3f}" for of in losses)

    return [
        kind,
        " ".join(map(str, layers)),
        f"{each:g} of {sum(layers)}",
        f"{1e3 * median:.0f}",
        f"{1e3 * expected:.0f}",
        f"{expected / median:.3f}",
        "" if kind == PLAIN else ratio(seconds[kind], seconds[PLAIN]).plain(),
        f"{sent['counted'] / sent['formula']:.3f}" if sent["counted"] else "",
        told("tokens"),
        told("seconds"),
        told("partial") if chosen.paths else "",
    ]


class Bars(NamedTuple):
    """How many kinds are simulated within the bar, what computing less gains and what a plan, by how much losses differ
    in the mean, and bytes that were counted over those of the formula. ``shorter`` is the planned one's time over the
    full one's. ``smaller`` is what a model of as many layers as are computed takes of the planned one's time, and by
    how much its loss differs from that at equal seconds; ``again`` is the full pipeline beside itself (A/A).
    """

    kinds: int
    simulated: int
    less_work: Ratio
    planned: Ratio
    shorter: Ratio
    again: Ratio
    at_tokens: float
    at_seconds: float
    early: float
    smaller: Ratio
    smaller_loss: float
    least_bytes: float
    most_bytes: float


def bars(kept: dict[str, Any]) -> Bars:
    """Of what was measured."""
    seconds = {kind: np.array(values) for kind, values in kept["seconds"].items()}
    sent = [of["counted"] / of["formula"] for of in kept["bytes"].values()]
    errors = [
        abs(simulated(kind, kept["latency"]) / float(np.median(found)) - 1) for kind, found in seconds.items()
    ]

    def mean(kind: str, name: str) -> float:
        return float(np.mean([kept["loss"][f"{kind}, seed {seed}"][name] for seed in range(SEEDS)]))

    return Bars(
        len(errors),
        sum(error <= WITHIN for error in errors),
        ratio(seconds[PLAIN], seconds[LOOSE]),
        ratio(seconds[LOOSE], seconds[PLANNED]),
        ratio(seconds[PLANNED], seconds[PLAIN]),
        ratio(seconds[AGAIN], seconds[PLAIN]),
        mean(PLANNED, "tokens") / mean(PLAIN, "tokens") - 1,
        mean(PLANNED, "seconds") / mean(PLAIN, "seconds") - 1,
        mean(PLANNED, "partial") / mean(PLANNED, "seconds") - 1,
        ratio(seconds[SMALLER], seconds[PLANNED]),
        mean(SMALLER, "seconds") / mean(PLANNED, "seconds") - 1,
        min(sent),
        max(sent),
    )


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    rounds = len(kept["seconds"][PLAIN])
    return (
        f"Partial pipelines: 4 hosts of the lab at {RATE:g} Mbit/s, work paced to {1e3 * LAYER:g} ms a layer forward, "
        f"{rounds} rounds beside other work (load {kept['load']:.0f}); losses of {SEEDS} seeds"
    )
