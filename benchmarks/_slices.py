"""SliceOut (arXiv 2007.10909) here: a step trains three quarters of heads and width, beside all of them.

Bytes of gradients are those of two data ranks' calls, and of the formula. Seconds of a step are taken in one process on
one core, a step of each setting in turn, in random order, whole matrices twice (A/A), of a small decoder and of one
four times as wide, in which products of matrices are most of a step. Losses are on held-out text, of whole matrices,
after as many steps and after as many seconds of training.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _ranks as ranks
from benchmarks import _table as table
from benchmarks._ratio import Ratio, Taken, ratio, wall_seconds
from engine.comm.context import RankContext
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tuning.predict.traffic.rank import Pipeline, traffic_of

NAME, KEPT = "systems_slices", table.RESULTS / "systems_slices.json"
KEEP, SEEDS = 0.75, 3
#: A step takes so much less at least.
LESS = 0.1
WHOLE, SLICES, AGAIN = "whole matrices", "three quarters", "again"
SHARES = {WHOLE: 1.0, SLICES: KEEP}
#: Whose steps are timed, and what each changes of the small decoder.
SMALL, WIDE = "small", "wide"
WIDTHS: dict[str, dict[str, Any]] = {
    SMALL: {},
    WIDE: {"model.hidden": 512, "model.ffn_hidden": 1408, "batch.micro_batch": 4, "batch.global_batch": 4},
}


class Size(NamedTuple):
    """Seconds and steps of a run whose loss is taken, and how many steps of each setting are timed."""

    seconds: float = 20.0
    steps: int = 150
    timed: int = 120


def config_of(**more: Any) -> RunConfig:
    """The small decoder's."""
    tree = {
        "model": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 352},
        "data": {"sequence_length": 128},
        "batch": {"micro_batch": 8, "global_batch": 8},
        "train": {"learning_rate": 2e-3, "learning_rate_warmup": 20, "validation_batches": 8,
                  "timeout_seconds": 3600.0},
        "device": "cpu",
    }  # fmt: skip
    return parse(tree).with_values({key.replace("__", "."): value for key, value in more.items()})


def run(size: Size, kept_at: Path = KEPT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each run."""
    kept = table.kept(kept_at)
    kept["size"] = size._asdict()
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        if "bytes" not in kept:
            kept["bytes"] = {kind: _bytes(session, share) for kind, share in SHARES.items()}
            table.keep(kept_at, kept)
        times = kept.setdefault("times", {})
        for width, values in WIDTHS.items():
            if width not in times:
                (taken,) = ranks.on_cores(config_of().with_values(values), _steps, size.timed)
                times[width] = {
                    kind: each.tolist() for kind, each in wall_seconds([taken], [*SHARES, AGAIN]).items()
                }
                table.keep(kept_at, kept)
        ends = {
            "steps": {"train.steps": size.steps},
            "seconds": {"train.seconds": size.seconds, "train.steps": 10_000},
        }
        for name, kind, seed, end in [
            (f"{kind}, {end}, seed {seed}", kind, seed, values)
            for seed in range(SEEDS)
            for end, values in ends.items()
            for kind in SHARES
        ]:
            if name not in kept.setdefault("loss", {}):
                config = config_of(train__seed=seed, train__slice_keep=SHARES[kind]).with_values(end)
                kept["loss"][name] = _summary(session, config).validation_loss
                table.keep(kept_at, kept)
    return kept


def _summary(session: Session, config: RunConfig) -> RunSummary:
    outcome, summary = session.execute(config, {}, lambda: False)
    assert outcome.good, outcome
    return summary


def _bytes(session: Session, share: float) -> dict[str, int]:
    """Of the gradients that two data ranks average in a step."""
    config = config_of(train__slice_keep=share, parallel__dp=2, batch__micro_batch=4, train__steps=4)
    config = config.with_values({"train.warmup": 1, "train.validation_batches": 0, "profile.budget": None})
    calls = [call for call in traffic_of(Pipeline.from_config(config), 0).calls if call.axis == "dp"]
    summary = _summary(session, config)
    return {
        "counted": round(sum(row.bytes for row in summary.communication if row.axis == "dp")),
        "formula": sum(call.bytes or 0 for call in calls),
    }


def _steps(rank: RankContext, rounds: int) -> list[Taken]:
    """Each kind once a round."""
    engines = {}
    for kind in (*SHARES, AGAIN):
        config = rank.config.with_values({"train.slice_keep": SHARES.get(kind, 1.0)})
        engines[kind] = ranks.EngineSteps(ranks.Engine(replace(rank, config=config)), recorded=False)
    return ranks.in_turn(engines, rounds)


HEADER = [
    "trained in a step",
    "gradients of two data ranks, bytes",
    "by formula",
    "a step, s",
    "of whole matrices'",
    "a step four times as wide, s",
    "of whole matrices'",
    "loss after as many steps, by seed",
    "after as many seconds",
    "over whole matrices', steps and seconds",
]


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each kind, and of the first one again."""
    found = []
    for kind in SHARES:
        sent = kept["bytes"][kind]
        losses = [", ".join(f"{one:.3f}" for one in _of(kept, kind, end)) for end in ("steps", "seconds")]
        over = (
            "" if kind == WHOLE else " and ".join(f"{lost(kept, end):+.1%}" for end in ("steps", "seconds"))
        )
        found.append(
            [kind, f"{sent['counted']:,}", f"{sent['formula']:,}", *_times(kept, kind), *losses, over]
        )
    return [*found, ["whole matrices again (A/A)", "", "", *_times(kept, AGAIN), "", "", ""]]


def _times(kept: dict[str, Any], kind: str) -> list[str]:
    found = list[str]()
    for width in WIDTHS:
        beside = "" if kind == WHOLE else time_of(kept, kind, width).plain()
        found += [f"{np.median(kept['times'][width][kind]):.4f}", beside]
    return found


def time_of(kept: dict[str, Any], kind: str, width: str = WIDE) -> Ratio:
    """A step's seconds over those of whole matrices."""
    return ratio(*(np.array(kept["times"][width][name]) for name in (kind, WHOLE)))


def _of(kept: dict[str, Any], kind: str, end: str) -> list[float]:
    return [
        kept["loss"][name] for seed in range(SEEDS) if (name := f"{kind}, {end}, seed {seed}") in kept["loss"]
    ]


def lost(kept: dict[str, Any], end: str) -> float:
    """By how much the mean loss is above that of whole matrices, over seeds that both have."""
    pairs = list(zip(_of(kept, SLICES, end), _of(kept, WHOLE, end), strict=False))
    return float(np.mean([one for one, _ in pairs]) / np.mean([other for _, other in pairs]) - 1)


def worse(kept: dict[str, Any], end: str) -> tuple[int, int]:
    """Seeds whose loss is above that of whole matrices, and how many there are."""
    pairs = list(zip(_of(kept, SLICES, end), _of(kept, WHOLE, end), strict=False))
    return sum(one > other for one, other in pairs), len(pairs)


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    size = kept["size"]
    return (
        f"Slices of heads and width: {size['timed']} steps of each, {size['steps']} steps or "
        f"{size['seconds']:g} seconds of training"
    )
