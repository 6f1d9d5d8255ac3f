"""Registers between stages (OneFlow's actors, arXiv 2110.15032) here: rate and what is held, for 1, 2, 4 and no bound.

GPipe sends all forwards ahead, over stages that become slower towards the end: without a bound messages pile up in
front of them. A rank then keeps what it sent until a gradient comes back, for gloo does not say that a message has
left. Work is paced and links are slow as in ``_partial_pipeline.py``; steps of all kinds are taken in turn, and
simulated event by event with as many credits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _ranks as ranks
from benchmarks import _table as table
from benchmarks._paced import paced_engine
from benchmarks._partial_pipeline import LAYER, PLAIN, WITHIN, in_lab, latencies_of, played
from benchmarks._ratio import Taken, wall_seconds
from engine.comm.context import RankContext
from engine.config.run_config import RunConfig
from engine.schedules.actions import Plan
from engine.schedules.credits import ways
from tuning.predict.simulation.step_result import SimulatedStep

NAME, KEPT = "systems_registers", table.RESULTS / "systems_registers.json"
AGAIN = "no bound, again (A/A)"
KINDS: dict[str, int | None] = {"no bound": None, AGAIN: None, "1": 1, "2": 2, "4": 4}


def config_of(kind: str) -> RunConfig:
    """A kind's, on a host for each rank."""
    given = {"schedule.kind": "gpipe", "schedule.stage_layers": [2, 3, 3, 4]}
    return in_lab(PLAIN).with_values(given | {"schedule.registers": KINDS[kind]})


def run(rounds: int, kept_at: Path = KEPT, kinds: tuple[str, ...] = tuple(KINDS)) -> dict[str, Any]:
    """What is kept, or what is measured and kept now."""
    if kept_at.is_file():
        kept: dict[str, Any] = json.loads(kept_at.read_text("utf-8"))
        return kept
    answers = ranks.on_cores(config_of(kinds[0]), _on_rank, rounds, kinds)
    seconds = wall_seconds([taken for taken, _, _ in answers], kinds)
    kept = {
        "latency": float(np.median(answers[0][1])),
        "seconds": {kind: found.tolist() for kind, found in seconds.items()},
        "held": {kind: max(held[kind] for _, _, held in answers) for kind in kinds},
    }
    table.keep(kept_at, kept)
    return kept


def _on_rank(
    rank: RankContext, rounds: int, kinds: tuple[str, ...]
) -> tuple[list[Taken], list[float], dict[str, int]]:
    latencies = latencies_of(rank)
    engines = {kind: paced_engine(rank, config_of(kind), LAYER) for kind in kinds}
    steps: dict[str, ranks.Steps] = {
        kind: ranks.EngineSteps(engine, recorded=False) for kind, engine in engines.items()
    }
    taken = ranks.in_turn(steps, rounds)
    return taken, latencies, {kind: engine.stages.most_held for kind, engine in engines.items()}


def piled_up(step: SimulatedStep, plan: Plan) -> int:
    """The most messages of one way that were begun and not used up, by the simulation."""
    spans = [span for rank in range(plan.ranks) for span in step.spans(rank)]
    begins, ends = ({span.action: span[edge] for span in spans} for edge in (1, 2))
    return max(
        sum(begins[one] <= begins[maker] for one, _ in pairs)
        - sum(ends[user] <= begins[maker] for _, user in pairs)
        for pairs in ways(plan).values()
        for maker, _ in pairs
    )


HEADER = ["registers", "measured (median), ms", "simulated, ms", "simulated / measured", "its time / without a bound",
          "held of one way at most, by counter", "begun and not used up, simulated"]  # fmt: skip


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """Of the table."""
    free, found = np.median(kept["seconds"]["no bound"]), []
    for kind, seconds in kept["seconds"].items():
        taken, step = float(np.median(seconds)), played(config_of(kind), kept["latency"])
        cells = [f"{1e3 * taken:,.0f}", f"{1e3 * step.seconds:,.0f}", f"{step.seconds / taken:.3f}"]
        held, piled = (str(count) for count in (kept["held"][kind], piled_up(step, step.step.plan)))
        found.append([kind, *cells, f"{taken / free:.3f}", held, piled])
    return found


def bars(kept: dict[str, Any]) -> dict[str, int]:
    """How many kinds keep each bar; that of what is held is one of kinds with a bound."""
    found = {"simulated": 0, "held": 0}
    for kind, seconds in kept["seconds"].items():
        ratio = played(config_of(kind), kept["latency"]).seconds / float(np.median(seconds))
        found["simulated"] += abs(ratio - 1) <= WITHIN
        bound = KINDS[kind]
        found["held"] += bound is not None and kept["held"][kind] <= bound
    return found


def title(kept: dict[str, Any]) -> str:
    """Of the table."""
    count = len(kept["seconds"]["no bound"])
    return f"GPipe on four stages of 2, 3, 3 and 4 layers, 8 micro-batches, {count} steps of each"
