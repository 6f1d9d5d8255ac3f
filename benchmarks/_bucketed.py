"""LSH-MoE (arXiv 2411.08446) here: expert tokens that are alike travel as one, beside all of them and beside int8.

Losses are of a small decoder with eight experts on two ranks of ep, on held-out text where all tokens travel. Seconds
of a step are taken in the lab, two hosts at 100 Mbit/s, settings in turn in random order on warm ranks, all tokens
twice (A/A). Bytes are those of the calls of ep, over those of all tokens, and what the interfaces counted.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _table as table
from benchmarks._ratio import half_width, ratio
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.session import Session
from profilers.model.run_summary import RunSummary

NAME, KEPT = "systems_bucketed", table.RESULTS / "systems_bucketed.json"
RATE = 0.13
#: Bytes in which a rank's step tells how many tokens go to each of eight experts, of four layers and one micro-batch.
_COUNTS = 4 * 8 * 8
#: What is lost at that rate at most, and how near to the rate the bytes are.
WITHIN, NEAR = 0.01, 0.01
ALL, INT8, AGAIN = "all tokens", "int8", "again"
LSH, ALONE, BOTH, BOTH_ALONE = "lsh", "lsh, no residual", "lsh_int8", "lsh_int8, no residual"
VALUES: dict[str, dict[str, Any]] = {
    ALL: {},
    INT8: {"compression.experts": "int8"},
    LSH: {
        "compression.experts": "lsh",
        "compression.expert_rate": RATE,
        "compression.expert_residual": True,
    },
    ALONE: {"compression.experts": "lsh", "compression.expert_rate": RATE},
    BOTH: {
        "compression.experts": "lsh_int8",
        "compression.expert_rate": RATE,
        "compression.expert_residual": True,
    },
    BOTH_ALONE: {"compression.experts": "lsh_int8", "compression.expert_rate": RATE},
}
#: Of each setting; of those whose bar three seeds do not decide, more.
SEEDS = dict.fromkeys(VALUES, 3) | dict.fromkeys((ALL, INT8, BOTH_ALONE), 12)


class Size(NamedTuple):
    """Steps of a run whose loss is taken, of one in the lab, and how often each setting has one there."""

    steps: int = 120
    timed: int = 8
    rounds: int = 5


def config_of(**more: Any) -> RunConfig:
    """The small decoder's."""
    tree = {
        "model": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 352, "experts": 8,
                  "expert_ffn_hidden": 176},
        "data": {"sequence_length": 128},
        "parallel": {"dp": 2, "ep": 2},
        "batch": {"micro_batch": 4, "global_batch": 8},
        "train": {"learning_rate": 2e-3, "learning_rate_warmup": 20, "validation_batches": 8,
                  "timeout_seconds": 3600.0},
        "device": "cpu",
    }  # fmt: skip
    return parse(tree).with_values({key.replace("__", "."): value for key, value in more.items()})


def run(size: Size, kept_at: Path = KEPT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each run."""
    kept = table.kept(kept_at)
    kept.setdefault("steps", size.steps)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        for seed, kind in itertools.product(range(max(SEEDS.values())), VALUES):
            name = f"{kind}, seed {seed}"
            if seed < SEEDS[kind] and name not in kept.setdefault("loss", {}):
                config = config_of(train__seed=seed, train__steps=kept["steps"])
                summary = _summary(session, config.with_values(VALUES[kind]))
                kept["loss"][name] = _about(summary) | {"loss": summary.validation_loss}
                table.keep(kept_at, kept)
        while kept.setdefault("rounds", 0) < size.rounds:
            _round(session, size.timed, kept)
            kept["rounds"] += 1
            table.keep(kept_at, kept)
    return kept


def _summary(session: Session, config: RunConfig) -> RunSummary:
    outcome, summary = session.execute(config, {}, lambda: False)
    assert outcome.good, outcome
    return summary


def _about(summary: RunSummary) -> dict[str, Any]:
    """Bytes of tokens that a rank's calls of ep have in a step; which part of them travelled, and how far from them."""
    experts = summary.experts
    return {
        "bytes": sum(row.bytes for row in summary.communication if row.axis == "ep") - _COUNTS,
        "sent": None if experts[0].sent_fraction is None else np.mean([row.sent_fraction for row in experts]),
        "residual": None if experts[0].residual is None else np.mean([row.residual for row in experts]),
    }


def _round(session: Session, steps: int, kept: dict[str, Any]) -> None:
    """Each setting once, in the lab."""
    base = config_of(
        train__steps=steps + 2, train__warmup=2, train__validation_batches=0, profile__budget=None
    )
    base = base.with_values({"lab.hosts": 2, "lab.rate_mbit": 100.0})
    names = [*VALUES, AGAIN]
    for name in random.sample(names, len(names)):
        summary = _summary(session, base.with_values(VALUES.get(name, {})))
        told = kept.setdefault("lab", {}).setdefault(name, {"seconds": []})
        told["seconds"].append(float(np.mean(summary.step_samples)))
        told |= {"said": summary.wire_bytes_per_step, "counted": summary.wire_bytes_measured}


HEADER = [
    "what travels",
    "bytes of ep, of all tokens'",
    "tokens that travel",
    "distance from them, of a token's length",
    "held-out loss, by seed",
    "over all tokens, mean of seeds (95 % interval)",
    "a step at 100 Mbit/s, s",
    "all tokens / it",
    "counted / said",
]


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each setting, and of the first one again."""
    found = [_row(kept, kind) for kind in VALUES]
    return [*found, ["all tokens again (A/A)", *[""] * 5, *_time(kept, AGAIN)]]


def _row(kept: dict[str, Any], kind: str) -> list[str]:
    runs = _runs(kept, kind)
    bucketed = runs[0]["sent"] is not None
    return [
        kind,
        f"{share(kept, kind):.4f}",
        f"{np.mean([run['sent'] for run in runs]):.4f}" if bucketed else "1",
        f"{np.mean([run['residual'] for run in runs]):.3f}" if bucketed else "",
        ", ".join(f"{run['loss']:.3f}" for run in runs),
        "" if kind == ALL else told_loss(kept, kind),
        *_time(kept, kind),
    ]


def _runs(kept: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    names = (f"{kind}, seed {seed}" for seed in range(SEEDS[kind]))
    return [kept["loss"][name] for name in names if name in kept["loss"]]


def _time(kept: dict[str, Any], kind: str) -> list[str]:
    told = kept.get("lab", {}).get(kind)
    if told is None:
        return ["not measured", "", ""]
    gained = "" if kind == ALL else gain(kept, kind).plain()
    return [f"{np.median(told['seconds']):.3f}", gained, f"{told['counted'] / told['said']:.4f}"]


def gain(kept: dict[str, Any], kind: str) -> Any:
    """How many times as long all tokens take."""
    return ratio(*(np.array(kept["lab"][name]["seconds"]) for name in (ALL, kind)))


def share(kept: dict[str, Any], kind: str) -> float:
    """Bytes of ep over those of all tokens."""
    mine, whole = (np.mean([run["bytes"] for run in _runs(kept, name)]) for name in (kind, ALL))
    return float(mine / whole)


def lost(kept: dict[str, Any], kind: str) -> tuple[float, float]:
    """By how much the loss is above that of all tokens: the mean over seeds that both have, and how far its 95 %
    interval reaches from it.
    """
    pairs = zip(_runs(kept, kind), _runs(kept, ALL), strict=False)
    found = [mine["loss"] / whole["loss"] - 1 for mine, whole in pairs]
    return float(np.mean(found)), half_width(found)


def told_loss(kept: dict[str, Any], kind: str) -> str:
    """In percent, with its interval."""
    middle, half = lost(kept, kind)
    return f"{middle:+.1%} ({middle - half:+.1%} to {middle + half:+.1%})"


def keeps(kept: dict[str, Any], kind: str) -> bool | None:
    """Whether the loss is within its bar; None where the seeds do not tell."""
    middle, half = lost(kept, kind)
    return True if middle + half <= WITHIN else False if middle - half > WITHIN else None


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    few, most = (len(_runs(kept, kind)) for kind in (LSH, BOTH_ALONE))
    return (
        f"Expert tokens that are alike travel as one: {kept['steps']} steps, {few} to {most} seeds; {kept['rounds']} "
        "rounds in the lab"
    )
