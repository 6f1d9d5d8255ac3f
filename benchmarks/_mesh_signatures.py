"""Signatures of the decoder's matrices on two axes (OneFlow's SBP, arXiv 2110.15032) in the lab: what the planner calls
cheapest beside all else that runs on as many ranks.

Four ranks on two hosts, 100 Mbit/s between them: dp=2 x tp=2 as given, with its best list of replicated matrices, and
all ranks on one axis. From large matrices beside few tokens to the reverse, so that different ones are best. The
settings of a point run in turn, in random order, on warm ranks; the planner's runs twice (A/A).
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from tuning.predict.model.hardware import Link
from tuning.predict.placement.signatures.mesh import Comparison, MeshSignatures, compare
from tuning.predict.target import Target
from workbench.home.calibrations import target_of

NAME, KEPT = "systems_mesh_signatures", table.RESULTS / "systems_mesh_signatures.json"
#: (width of the model, length of a sequence).
POINTS = [(512, 32), (256, 128), (128, 1024)]
AGAIN = "again"
#: Losses of layouts that compute the same in another order are no further apart.
SAME_LOSS = 1e-5
#: As near as this counts as equal, as in studies.
EQUAL = 0.03
HOSTS, RANKS, MBIT = 2, 4, 100.0
_STEPS, _WARMUP = 6, 2
HEADER = [
    "width, sequence",
    "layout",
    "sent, formula",
    "messages, formula, s",
    "losses differ by",
    "step, s",
    "beside the planner's",
]


def config_of(width: int, length: int) -> RunConfig:
    """A decoder on two axes, tp inside of hosts."""
    return parse(
        {
            "model": {
                "layers": 2, "hidden": width, "heads": 8, "kv_heads": 4, "ffn_hidden": 11 * width // 4,
                "vocabulary": 512,
            },
            "data": {"sequence_length": length},
            "parallel": {"dp": 2, "tp": 2},
            "batch": {"micro_batch": 1, "global_batch": 4},
            "lab": {"hosts": HOSTS, "rate_mbit": MBIT},
            "train": {"steps": _STEPS + _WARMUP, "warmup": _WARMUP, "validation_batches": 0},
            "device": "cpu",
        }
    )  # fmt: skip


def lab() -> Target:
    """The hosts as they are set up: ranks of one share its uplink, and talk to each other through memory.

    ``workbench predict`` prices no links of a lab; this is how it prices a cluster's.
    """
    known = target_of(Path("nowhere"), "frontier", HOSTS, None)
    each = RANKS // HOSTS
    groups = tuple(
        replace(one, inside=Link(0.0, 1e9), between=Link(0.0, MBIT * 1e6 / 8 / each), devices=each)
        for one in known.cluster.groups
    )
    reached = known.calibrated.constants.put(
        inside_share=1.0, between_share=1.0, inside_seconds=2e-4, between_seconds=1e-3
    )
    return replace(
        known,
        cluster=replace(known.cluster, groups=groups),
        calibrated=replace(known.calibrated, constants=reached),
    )


@cache
def planned(width: int, length: int) -> Comparison:
    """What the planner says of a point."""
    found = compare(config_of(width, length).with_values({"lab.hosts": None, "lab.rate_mbit": None}), lab())
    assert found is not None
    return found


def name_of(row: MeshSignatures) -> str:
    """As the tables call it."""
    return " ".join(
        f"{key.partition('.')[2]}={','.join(value) if isinstance(value, list) else value}"
        for key, value in (row.settings or {}).items()
        if value is not None
    )


def settings(width: int, length: int) -> dict[str, RunConfig]:
    """Of a point, by name; the planner's twice."""
    found, plain = planned(width, length), config_of(width, length)
    asked = {name_of(row): plain.with_values(row.settings or {}) for row in found.runnable}
    return asked | {AGAIN: asked[name_of(found.best)]}


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, and keep it after every round of a point."""
    kept = {"points": {}} | table.kept(KEPT)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        for width, length in POINTS:
            told = kept["points"].setdefault(f"{width} {length}", {"seconds": {}, "losses": {}, "rounds": 0})
            while told["rounds"] < rounds:
                chosen = list(settings(width, length).items())
                random.shuffle(chosen)
                for name, config in chosen:
                    outcome, summary = session.execute(config, {}, lambda: False)
                    if outcome.ending is not Ending.COMPLETED:
                        raise SystemExit(f"{name} of width {width}, sequence {length}: {outcome}")
                    told["seconds"].setdefault(name, []).append(float(np.mean(summary.step_samples)))
                    told["losses"][name] = [one for one in summary.losses if one is not None]
                told["rounds"] += 1
                table.keep(KEPT, kept)
    return kept


def rows(kept: dict[str, Any]) -> tuple[list[list[str]], dict[str, int]]:
    """A row of each setting, and at how many points each bar is kept: losses equal, the planner's not over 3 % slower
    than any other, and at least 5 % faster than the slowest.
    """
    found, bars = [], {"equal": 0, "not slower": 0, "5 % faster": 0}
    for width, length in POINTS:
        told, plan = kept["points"][f"{width} {length}"], planned(width, length)
        taken = {name: np.array(values) for name, values in told["seconds"].items()}
        best = name_of(plan.best)
        beside = {name: ratio(values, taken[best]) for name, values in taken.items() if name != best}
        apart = {name: _apart(told["losses"], name, best) for name in taken}
        others = [one for name, one in beside.items() if name != AGAIN]
        bars["equal"] += max(apart.values()) <= SAME_LOSS
        bars["not slower"] += min(one.high for one in others) >= 1 - EQUAL
        bars["5 % faster"] += max(one.low for one in others) >= 1.05
        for row in plan.runnable:
            name = name_of(row)
            said = "planner's" if name == best else beside[name].plain()
            found.append(_row(f"{width}, {length:,}", name, row, apart[name], taken[name], said))
        found.append(_row(f"{width}, {length:,}", "planner's again (A/A)", plan.best, apart[AGAIN], taken[AGAIN],
                          beside[AGAIN].plain()))  # fmt: skip
    return found, bars


def _apart(losses: dict[str, list[float]], name: str, best: str) -> float:
    return max(abs(a - b) for a, b in zip(losses[name], losses[best], strict=True))


def _row(point: str, name: str, row: MeshSignatures, apart: float, taken: Any, said: str) -> list[str]:
    sent, formula = f"{row.bytes_ / 1e6:.2f} MB", f"{row.seconds:.3f}"
    return [point, name, sent, formula, f"{apart:.1e}", f"{taken.mean():.3f}", said]


def again_range(kept: dict[str, Any]) -> str:
    """From the least to the most of what a point took beside itself (A/A)."""
    found = [
        float(np.mean(told["seconds"][AGAIN]) / np.mean(told["seconds"][name_of(planned(*point).best)]))
        for point, told in zip(POINTS, kept["points"].values(), strict=True)
    ]
    return f"{min(found):.3f} to {max(found):.3f}"


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    rounds = min(told["rounds"] for told in kept["points"].values())
    return (
        f"Signatures on two axes, four ranks on two hosts, {MBIT:g} Mbit/s, {rounds} rounds of {_STEPS} steps"
    )
