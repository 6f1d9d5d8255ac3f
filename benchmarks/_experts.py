"""SE-MoE (arXiv 2205.10034) in the lab: an embedding in columns, and experts' rows in two stages over islands.

The embedding has 32,000 words, two ranks are on hosts of their own, and links have 100 Mbit/s. Rows of experts go
between four ranks on two islands of fast links, with 100 Mbit/s between them. The settings of a point run in turn, in
random order, on warm ranks; the plain one runs twice (A/A). Bytes are those of the calls, by the backend's algorithms,
and what the interfaces counted, without headers.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary

NAME, KEPT = "systems_experts", table.RESULTS / "systems_experts.json"
PLAIN, OURS, AGAIN = "plain", "ours", "again"
WORDS = 32_000
#: Bytes that are counted are as near as this to what is said.
SAME_BYTES = 0.01
_STEPS, _WARMUP, _ISLAND = 6, 2, 2
HEADER = [
    "what",
    "losses differ by",
    "bytes a step and rank, by its calls",
    "counted / said",
    "messages between islands a step",
    "plain, s",
    "ours, s",
    "plain / ours",
    "again / plain (A/A)",
    "seconds in its own messages, plain and ours",
]


class Point(NamedTuple):
    """A setting beside what stands for it without the technique."""

    title: str
    plain: RunConfig
    values: dict[str, Any]


def points() -> dict[str, Point]:
    """By name."""
    train = {"steps": _STEPS + _WARMUP, "warmup": _WARMUP, "validation_batches": 0, "clip_norm": None}
    profile = {"budget": None}
    words = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 176, "vocabulary": WORDS}
    embedding = {
        "model": words,
        "data": {"sequence_length": 128},
        "parallel": {"dp": 2},
        "batch": {"micro_batch": 1, "global_batch": 2},
        "overlap": {"bucket_mb": 1.0},
        "lab": {"hosts": 2, "rate_mbit": 100.0},
    }
    experts = {
        "model": words | {"vocabulary": 512, "experts": 8},
        "data": {"sequence_length": 16},
        "parallel": {"dp": 4, "ep": 4},
        "batch": {"micro_batch": 1, "global_batch": 8},
        "lab": {"islands": [_ISLAND] * 2, "between_mbit": 100.0},
    }
    more = {"train": train, "profile": profile, "device": "cpu"}
    return {
        "columns": Point(
            f"embedding of {WORDS:,} words in columns",
            parse(embedding | more),
            {"parallel.embedding": "columns"},
        ),
        "islands": Point(
            "rows of experts in two stages", parse(experts | more), {"parallel.ep_island": _ISLAND}
        ),
    }


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing."""
    return measure(points(), KEPT, rounds, _about)


def measure(
    chosen: dict[str, Point], kept_at: Path, rounds: int, about: Callable[[RunSummary], dict[str, Any]]
) -> dict[str, Any]:
    """So many rounds of every point, as far as they are missing, kept after each; with what is said ``about`` a run."""
    kept = {"points": {}} | table.kept(kept_at)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        for name, point in chosen.items():
            told = kept["points"].setdefault(name, {"seconds": {}, "runs": {}, "rounds": 0})
            while told["rounds"] < rounds:
                for setting, summary in _round(session, point):
                    told["seconds"].setdefault(setting, []).append(float(np.mean(summary.step_samples)))
                    told["runs"][setting] = about(summary)
                told["rounds"] += 1
                table.keep(kept_at, kept)
    return kept


def _round(session: Session, point: Point) -> Iterator[tuple[str, RunSummary]]:
    """Each setting once."""
    settings = {PLAIN: point.plain, OURS: point.plain.with_values(point.values), AGAIN: point.plain}
    for name, config in random.sample(list(settings.items()), len(settings)):
        outcome, summary = session.execute(config, {}, lambda: False)
        if outcome.ending is not Ending.COMPLETED:
            raise SystemExit(f"{point.title}, {name}: {outcome}")
        yield name, summary


def _about(summary: RunSummary) -> dict[str, Any]:
    """Losses, bytes of a rank's step as said and counted, and its calls."""
    return {
        "losses": summary.losses,
        "said": summary.wire_bytes_per_step,
        "counted": summary.wire_bytes_measured,
        "calls": [
            [row.axis, row.operation, row.calls, row.bytes / row.calls, row.group_size, row.seconds]
            for row in summary.communication
        ],
    }


def between(calls: list[list[Any]]) -> float:
    """Messages of experts' all-to-alls from one island to the other in a step: each rank of a group sends one to every
    other rank.
    """
    away = {"ep": _ISLAND, "ep_between": 1}
    return sum(_ISLAND * count * away.get(axis, 0) for axis, _, count, *_ in calls)


def own_seconds(name: str, told: dict[str, Any]) -> float:
    """A rank's seconds in the messages that the technique changes. Of gradients half: the head's are as many as
    those of the embedding.
    """
    if name == "islands":
        return sum(seconds for axis, *_, seconds in told["calls"] if axis.startswith("ep"))
    exchanged = [row for row in told["calls"] if row[1] in ("all_gather", "all_to_all")]
    if exchanged:
        return sum(row[-1] for row in exchanged)
    return sum(row[-1] for row in told["calls"] if row[1] == "all_reduce" and row[0] == "dp") / 2


def rows(kept: dict[str, Any]) -> tuple[list[list[str]], dict[str, float]]:
    """A row of each point, and the figures that the verdict asks for."""
    found, bars = [], dict[str, float]()
    for name, point in points().items():
        told = kept["points"][name]
        taken = {setting: np.array(values) for setting, values in told["seconds"].items()}
        plain, ours = told["runs"][PLAIN], told["runs"][OURS]
        apart = max(abs(a - b) for a, b in zip(plain["losses"], ours["losses"], strict=True))
        gain, again = ratio(taken[PLAIN], taken[OURS]), ratio(taken[AGAIN], taken[PLAIN])
        crossing = [between(one["calls"]) for one in (plain, ours)]
        spent = [own_seconds(name, one) for one in (plain, ours)]
        counted = max(abs(one["counted"] / one["said"] - 1) for one in (plain, ours))
        bars |= {
            f"{name} apart": apart,
            f"{name} bytes": counted,
            f"{name} gain": gain.middle,
            f"{name} low": gain.low * min(1.0, again.middle),
            f"{name} again": again.middle,
            f"{name} more": ours["said"] / plain["said"] - 1,
            f"{name} own gain": spent[0] / spent[1],
            f"{name} messages": crossing[0] / crossing[1] if crossing[1] else 0.0,
        }
        found.append(
            [
                point.title,
                f"{apart:.1e}",
                f"{plain['said'] / 1e6:.3f} and {ours['said'] / 1e6:.3f} MB",
                " and ".join(f"{one['counted'] / one['said']:.4f}" for one in (plain, ours)),
                " and ".join(f"{count:,.0f}" for count in crossing) if crossing[0] else "",
                f"{taken[PLAIN].mean():.3f}",
                f"{taken[OURS].mean():.3f}",
                gain.plain(),
                again.plain(),
                " and ".join(f"{seconds:.3f}" for seconds in spent),
            ]
        )
    return found, bars


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    rounds = min(told["rounds"] for told in kept["points"].values())
    return f"Columns of an embedding and experts' rows in two stages, in the lab, {rounds} rounds of {_STEPS} steps"
