"""Signatures of the decoder's matrices (OneFlow's SBP, arXiv 2110.15032) in the lab: split, as chosen, all replicated.

Ranks of tp on hosts of their own, links of 100 Mbit/s. Sequences of several lengths, so that what is chosen goes from
nothing to all. The settings of a length run in turn, in random order, on warm ranks; the one that is chosen runs twice
(A/A). Bytes are the closed form's, and what the interfaces of the hosts counted.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.run.outcome import Ending
from engine.session import Session
from tuning.predict.placement.signatures.decoder import PARTS, best

NAME, KEPT = "systems_signatures", table.RESULTS / "systems_signatures.json"
#: (ranks of tp, length of a sequence).
POINTS = [(2, 64), (2, 256), (2, 1024), (4, 64), (4, 256), (4, 1024)]
KEY, SPLIT, CHOSEN, AGAIN, ALL = "parallel.tp_replicated", "all split", "as chosen", "again", "all replicated"
#: Losses of settings that compute the same in another order are no further apart.
SAME_LOSS, _FASTER = 1e-5, 0.05
#: As near as this counts as equal, as in studies.
EQUAL = 0.03
_STEPS, _WARMUP = 6, 2
HEADER = [
    "tp",
    "sequence",
    "chosen: whole on every rank",
    "losses differ by",
    "bytes saved in a step of tp, formula",
    "by the interfaces, with headers",
    "all split, s",
    "as chosen, s",
    "all split / chosen",
    "all replicated / chosen",
    "again / chosen (A/A)",
]


def config_of(ranks: int, length: int) -> RunConfig:
    """A decoder whose matrices are small beside long activations."""
    return parse(
        {
            "model": {
                "layers": 2, "hidden": 128, "heads": 8, "kv_heads": 4, "ffn_hidden": 352, "vocabulary": 512,
            },
            "data": {"sequence_length": length},
            "parallel": {"tp": ranks},
            "batch": {"micro_batch": 1, "global_batch": 4},
            "lab": {"hosts": ranks, "rate_mbit": 100.0},
            "train": {"steps": _STEPS + _WARMUP, "warmup": _WARMUP, "validation_batches": 0},
            "device": "cpu",
        }
    )  # fmt: skip


def settings(ranks: int, length: int) -> dict[str, RunConfig]:
    """Of a point, by name; what is chosen twice."""
    plain = config_of(ranks, length)
    found = best(plain)
    assert found is not None
    chosen = plain.with_values({KEY: list(found.parts) or None})
    return {SPLIT: plain, CHOSEN: chosen, AGAIN: chosen, ALL: plain.with_values({KEY: list(PARTS)})}


def run(rounds: int) -> dict[str, Any]:
    """Measure what is missing, and keep it after every round of a point."""
    kept = {"points": {}} | table.kept(KEPT)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        for ranks, length in POINTS:
            told = kept["points"].setdefault(
                f"{ranks} {length}", {"seconds": {}, "bytes": {}, "losses": {}, "rounds": 0}
            )
            while told["rounds"] < rounds:
                for name, seconds, bytes_, losses in _round(session, ranks, length):
                    told["seconds"].setdefault(name, []).append(seconds)
                    told["bytes"][name], told["losses"][name] = bytes_, losses
                told["rounds"] += 1
                table.keep(KEPT, kept)
    return kept


def _round(session: Session, ranks: int, length: int) -> Iterator[tuple[str, float, float, list[float]]]:
    """Each setting once: mean step in seconds, bytes that all hosts' interfaces sent in a step, losses."""
    chosen = list(settings(ranks, length).items())
    random.shuffle(chosen)
    for name, config in chosen:
        outcome, summary = session.execute(config, {}, lambda: False)
        if outcome.ending is not Ending.COMPLETED:
            raise SystemExit(f"{name} of tp={ranks}, sequence {length}: {outcome}")
        assert summary.interfaces is not None
        seconds = float(np.mean(summary.step_samples))
        sent = sum(row.sent_bytes_per_second for row in summary.interfaces if row.interface == "data")
        yield name, seconds, sent * seconds, [one for one in summary.losses if one is not None]


def rows(kept: dict[str, Any]) -> tuple[list[list[str]], dict[str, int]]:
    """A row of each point, and how many of them keep each bar: losses equal, bytes as said, not slower, faster than all
    split, and than all replicated.
    """
    found, bars = [], {"equal": 0, "bytes": 0, "not slower": 0, "5 % faster": 0, "than all": 0}
    for ranks, length in POINTS:
        told = kept["points"][f"{ranks} {length}"]
        taken = {name: np.array(values) for name, values in told["seconds"].items()}
        chosen = best(config_of(ranks, length))
        assert chosen is not None
        apart = max(
            abs(a - b)
            for name in (CHOSEN, ALL)
            for a, b in zip(told["losses"][name], told["losses"][SPLIT], strict=True)
        )
        saved, counted = chosen.split_bytes - chosen.bytes_, told["bytes"][SPLIT] - told["bytes"][CHOSEN]
        gain, against_all, again = (ratio(taken[name], taken[CHOSEN]) for name in (SPLIT, ALL, AGAIN))
        bars["equal"] += apart <= SAME_LOSS
        bars["bytes"] += abs(counted - saved) <= 0.1 * chosen.split_bytes
        bars["not slower"] += min(gain.high, against_all.high) >= 1 - EQUAL
        bars["5 % faster"] += gain.middle >= 1 + _FASTER
        bars["than all"] += against_all.middle >= 1 + _FASTER
        found.append(
            [
                f"{ranks}",
                f"{length:,}",
                ", ".join(chosen.parts) or "none",
                f"{apart:.1e}",
                f"{saved / 1e6:.2f} MB of {chosen.split_bytes / 1e6:.2f}",
                f"{counted / 1e6:.2f} MB of {told['bytes'][SPLIT] / 1e6:.2f}",
                f"{taken[SPLIT].mean():.3f}",
                f"{taken[CHOSEN].mean():.3f}",
                gain.plain(),
                against_all.plain(),
                again.plain(),
            ]
        )
    return found, bars


def again_range(kept: dict[str, Any]) -> str:
    """From the least to the most of what a point took beside itself (A/A)."""
    taken = [told["seconds"] for told in kept["points"].values()]
    found = [float(np.mean(one[AGAIN]) / np.mean(one[CHOSEN])) for one in taken]
    return f"{min(found):.3f} to {max(found):.3f}"


def title(kept: dict[str, Any]) -> str:
    """What was measured."""
    rounds = min(told["rounds"] for told in kept["points"].values())
    return (
        f"Signatures of matrices over tp, a host for each rank, 100 Mbit/s, {rounds} rounds of {_STEPS} steps"
    )
