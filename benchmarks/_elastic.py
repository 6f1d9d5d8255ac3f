"""SE-MoE (arXiv 2205.10034): ranks in proportion to tasks, and what layers ahead, tiers ahead and fused gathers are
worth, each by itself; and layered accumulation (2106.02679).

Two tasks have 4 : 1 of a batch on two ranks, which serve one each or equally many micro-batches. Layers of ZeRO 3 are
gathered ahead, and in one message or one a parameter, over links of a rate; or once for all micro-batches of a step,
layer by layer, in place of once for each. Experts lie in a file (which the system's
cache of pages holds) and are fetched into a quarter as many slots, ahead or when they are asked for. The settings of a
point run in turn, in random order, on warm ranks; the plain one runs twice (A/A). Bytes are those of the calls, and
what the interfaces counted, without headers; of experts those that were fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _table as table
from benchmarks._experts import AGAIN, OURS, PLAIN, Point, measure
from benchmarks._ratio import Ratio, ratio
from engine.config.layout import accumulation
from engine.config.run_config import RunConfig, parse
from profilers.model.run_summary import RunSummary

#: What the bars ask for.
GAIN, SAME_LOSS, SAME_BYTES = 1.3, 1e-5, 0.01
_STEPS, _WARMUP = 8, 2
HEADER = [
    "what",
    "losses differ by",
    "bytes a step and rank, plain and ours",
    "counted / said",
    "messages a step",
    "seconds waited a step",
    "plain, s",
    "ours, s",
    "plain / ours",
    "again / plain (A/A)",
]


class Part(NamedTuple):
    """Points that are measured and kept together."""

    name: str
    title: str
    points: tuple[str, ...]

    @property
    def kept(self) -> Path:
        """Where."""
        return table.RESULTS / f"{self.name}.json"


TASKS = Part("systems_tasks", "Ranks in proportion to two tasks of 4 : 1", ("tasks",))
AHEAD = Part("systems_ahead", "Layers ahead, tiers ahead and fused gathers", ("layer", "fused", "tier"))
LAYERED = Part("systems_layered", "Layered accumulation, four micro-batches", ("layered",))


def points() -> dict[str, Point]:
    """By name."""
    wide, narrow = _model(256), _model(64)
    tasks = {
        "model": _model(128),
        "data": {"sequence_length": 128, "tasks": [{"name": "large", "share": 4}, {"name": "small"}]},
        "parallel": {"dp": 2, "task_ranks": "even"},
        "batch": {"micro_batch": 1, "global_batch": 20},
        "lab": {"hosts": 2},
    }
    sharded = {
        "data": {"sequence_length": 128},
        "parallel": {"dp": 2, "zero_stage": 3},
        "batch": {"micro_batch": 1, "global_batch": 4},
        "lab": {"hosts": 2, "rate_mbit": 1000.0},
    }
    slots = {
        "model": wide | {"experts": 16, "experts_per_token": 1},
        "data": {"sequence_length": 64},
        "batch": {"micro_batch": 1, "global_batch": 1},
        "memory": {"expert_slots": 16, "expert_home": "disk", "expert_ahead": False},
    }
    proportional, fused = {"parallel.task_ranks": "proportional"}, {"overlap.fused_gathers": True}
    apart = sharded | {"model": narrow, "overlap": {"fused_gathers": False}}
    slow = {"hosts": 2, "rate_mbit": 100.0}
    many = sharded | {"model": narrow, "batch": {"micro_batch": 1, "global_batch": 8}, "lab": slow}
    return {
        "layered": Point(
            "a layer gathered once for 4 micro-batches, 100 Mbit/s",
            _config(many),
            {"schedule.kind": "layered", "schedule.chunks": 4},
        ),
        "tasks": Point("ranks in proportion to tasks of 4 : 1", _config(tasks), proportional),
        "layer": Point(
            "layer ahead, 1,000 Mbit/s", _config(sharded | {"model": wide}), {"overlap.prefetch": 1}
        ),
        "fused": Point("a layer's parameters in one message, 1,000 Mbit/s", _config(apart), fused),
        "tier": Point("tier ahead: experts from a file", _config(slots), {"memory.expert_ahead": True}),
    }


def _model(hidden: int) -> dict[str, Any]:
    return {"layers": 4, "hidden": hidden, "heads": 4, "kv_heads": 4, "ffn_hidden": hidden * 11 // 4}


def _config(sections: dict[str, Any]) -> RunConfig:
    train = {"steps": _STEPS + _WARMUP, "warmup": _WARMUP, "validation_batches": 0}
    return parse(sections | {"train": train, "profile": {"budget": None}, "device": "cpu"})


def run(part: Part, rounds: int) -> dict[str, Any]:
    """Measure what is missing."""
    chosen = {name: point for name, point in points().items() if name in part.points}
    return measure(chosen, part.kept, rounds, _about)


def _about(summary: RunSummary) -> dict[str, Any]:
    """Losses, those of each task too; bytes of a rank's step as said and counted; messages, and what was waited."""
    every = [summary.losses, *(row.losses for row in summary.tasks)]
    found = {
        "losses": [loss for losses in every for loss in losses],
        "said": summary.wire_bytes_per_step,
        "counted": summary.wire_bytes_measured,
        "messages": sum(row.calls for row in summary.communication),
        "waited": summary.phases["communication_exposed"],
        "gathered": sum(row.bytes for row in summary.communication if row.operation == "all_gather"),
    }
    for row in summary.expert_slots:
        steps = _STEPS + _WARMUP
        asked = row.hits + row.ahead + row.misses
        found |= {
            "fetched": row.fetched_bytes / steps,
            "slot": row.slot_bytes,
            "messages": row.fetched_bytes / row.slot_bytes / steps,
            "waited": row.waited_seconds / steps,
            "asked": asked,
        }
    return found


class Compared(NamedTuple):
    """One point: how far losses and counted bytes are off, and how much sooner a step is done."""

    apart: float
    bytes: float | None
    gain: Ratio
    again: Ratio
    waited: tuple[float, float]


def compared(told: dict[str, Any]) -> Compared:
    """What was kept of a point."""
    taken = {setting: np.array(values) for setting, values in told["seconds"].items()}
    plain, ours = told["runs"][PLAIN], told["runs"][OURS]
    counted = [
        abs(one["counted"] / one["said"] - 1) for one in (plain, ours) if one["counted"] and one["said"]
    ]
    return Compared(
        max(abs(a - b) for a, b in zip(plain["losses"], ours["losses"], strict=True)),
        max(counted, default=None),
        ratio(taken[PLAIN], taken[OURS]),
        ratio(taken[AGAIN], taken[PLAIN]),
        (plain["waited"], ours["waited"]),
    )


def predicted_gain() -> float:
    """Of the tasks, by the busiest rank's micro-batches."""
    point = points()["tasks"]
    return accumulation(point.plain) / accumulation(point.plain.with_values(point.values))


def rows(part: Part, kept: dict[str, Any]) -> list[list[str]]:
    """A row of each point."""
    found = []
    for name in part.points:
        told = kept["points"][name]
        one, seconds, runs = compared(told), told["seconds"], [told["runs"][which] for which in (PLAIN, OURS)]
        sizes = [run["said"] or run.get("fetched", 0.0) for run in runs]
        shares = [f"{run['counted'] / run['said']:.4f}" for run in runs if run["counted"] and run["said"]]
        found.append(
            [
                points()[name].title,
                f"{one.apart:.1e}",
                " and ".join(f"{size / 1e6:.3f}" for size in sizes) + " MB",
                " and ".join(shares),
                " and ".join(f"{run['messages']:,.0f}" for run in runs),
                " and ".join(f"{value:.4f}" for value in one.waited),
                *(f"{np.mean(seconds[which]):.3f}" for which in (PLAIN, OURS)),
                one.gain.plain(),
                one.again.plain(),
            ]
        )
    return found


def title(part: Part, kept: dict[str, Any]) -> str:
    """What was measured."""
    rounds = min(told["rounds"] for told in kept["points"].values())
    return f"{part.title}, {rounds} rounds of {_STEPS} steps"
