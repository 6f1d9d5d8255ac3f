"""Planned groups of ranks where each rank is a device of its own, as eight ranks on few cores (``_sequences.py``) are
not: their work is paced.

Attention takes each rank a time that is set for every token and every token squared of its documents, forward, and
twice that backward; real products are a few per cent of it, and all-to-alls go over real links, as slow in proportion.
What groups take is measured at the start, planned and corrected as in every run, and steps of all kinds are taken in
turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import _ranks as ranks
from benchmarks import _sequences as sequences
from benchmarks import _table as table
from benchmarks._ratio import Taken, ratio, wall_seconds
from engine.comm.context import RankContext
from engine.config.run_config import RunConfig
from engine.parallel.context.axis import DocumentAttention
from engine.parallel.context.sequence_learning import groups_of

NAME, KEPT = "systems_sequences_paced", table.RESULTS / "systems_sequences_paced.json"
#: Forward, of each layer: seconds of a token, and of a token squared, on one rank.
TOKEN, SQUARE = 2e-4, 3.1e-7
RATE = 40.0
ROUNDS = 16
#: Steps whose groups are not counted: factors are learned in them.
LEARNING = ranks.WARM_UP
KINDS: dict[str, int | str] = {
    sequences.PLANNED: "planned",
    sequences.WHOLE: sequences.LARGEST,
    sequences.AGAIN: sequences.LARGEST,
}
#: A rank's micro-batches of each step, as it tells them.
Told = list[list[list[float]]]


def config_of(folder: Path, kind: str) -> RunConfig:
    """A kind's."""
    small = {"model.layers": 2, "model.hidden": 64, "model.ffn_hidden": 64, "lab.rate_mbit": RATE}
    return sequences.config_of(folder).with_values(small | {"parallel.sequence_groups": KINDS[kind]})


def run(rounds: int = ROUNDS, kept_at: Path = KEPT) -> dict[str, Any]:
    """What is kept, or what is measured and kept now."""
    if kept_at.is_file():
        return table.kept(kept_at)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sequences.write_texts(folder)
        answers = ranks.on_cores(config_of(folder, sequences.PLANNED), _on_rank, place, rounds)
    seconds = wall_seconds([taken for taken, _ in answers], tuple(KINDS))
    told = {kind: list(zip(*(rows[kind] for _, rows in answers), strict=True)) for kind in KINDS}
    kept = {
        "seconds": {kind: found.tolist() for kind, found in seconds.items()},
        "groups": {kind: [groups_of(step) for step in steps[LEARNING:]] for kind, steps in told.items()},
    }
    table.keep(kept_at, kept)
    return kept


def _on_rank(rank: RankContext, folder: str, rounds: int) -> tuple[list[Taken], dict[str, Told]]:
    DocumentAttention._one_by_one = _paced(DocumentAttention._one_by_one)
    steps, told = dict[str, ranks.Steps](), dict[str, Told]()
    for kind in KINDS:
        engine = ranks.Engine(replace(rank, config=config_of(Path(folder), kind)))
        steps[kind] = ranks.EngineSteps(engine, recorded=False)
        told[kind] = []
        engine.stages.documents._tell = told[kind].append
    return ranks.in_turn(steps, rounds), told


def _paced(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Attention of one rank to its group's documents, which takes as long as is set."""

    def paced(self: DocumentAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        degree = 1 if self._channel is None else self._channel.size
        lengths = self.lengths or (query.shape[2],)
        seconds = sum((TOKEN + SQUARE * length) * length for length in lengths) / degree
        found: Tensor = _Pause.apply(attend(self, query, key, value), seconds)
        return found

    return paced


class _Pause(torch.autograd.Function):
    """Nothing for so many seconds, and for twice as many on the way back."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = 2 * seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(context.seconds)
        return gradient, None


HEADER = ["setting", "s a step", "planned over it", "its groups", "predicted groups off by", "of 1, 2, 4, 8 ranks",
          "the same groups in equal runs"]  # fmt: skip


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """Of the table."""
    found, planned = [], np.array(kept["seconds"][sequences.PLANNED])
    for kind in KINDS:
        groups = [tuple(row) for step in kept["groups"][kind] for row in step]
        seconds = np.array(kept["seconds"][kind])
        by_size = {size: [row for row in groups if row[0] == size] for size in (1, 2, 4, 8)}
        found.append(
            [
                kind,
                f"{seconds.mean():.2f}",
                ratio(seconds, planned).plain(),
                f"{len(groups)}",
                f"{off(groups):.1%}",
                ", ".join(f"{off(rows):.1%}" if rows else "none" for rows in by_size.values()),
                f"{apart(kept):.1%}" if kind == sequences.AGAIN else "",
            ]
        )
    return found


def off(groups: list[tuple[float, float, float]]) -> float:
    """By how much predicted seconds of a group miss the measured ones, in the mean."""
    return fmean(abs(planned / seconds - 1) for _, planned, seconds in groups)


def apart(kept: dict[str, Any]) -> float:
    """By how much the same groups' seconds differ between two equal engines, in the mean."""
    one, other = (
        [row[2] for step in kept["groups"][kind] for row in step]
        for kind in (sequences.WHOLE, sequences.AGAIN)
    )
    return fmean(abs(a / b - 1) for a, b in zip(one, other, strict=True))


def bars(kept: dict[str, Any]) -> dict[str, float]:
    """What the line of the table of systems says."""
    seconds = {kind: np.array(of) for kind, of in kept["seconds"].items()}
    return {
        "apart": apart(kept),
        "off": off([tuple(row) for step in kept["groups"][sequences.PLANNED] for row in step]),
        "gain": ratio(seconds[sequences.WHOLE], seconds[sequences.PLANNED]).middle,
        "again": ratio(seconds[sequences.WHOLE], seconds[sequences.AGAIN]).middle,
    }


def title(kept: dict[str, Any]) -> str:
    """Of the table."""
    steps = len(kept["seconds"][sequences.PLANNED])
    return (
        f"Planned groups on paced ranks: {1e3 * TOKEN:g} ms a token and layer forward and {1e6 * SQUARE:g} us a token "
        f"squared, twice that backward; {sequences.RANKS} ranks of {sequences.HOLDS} tokens on 2 hosts at "
        f"{RATE:g} Mbit/s, {steps} steps of each in turn"
    )
