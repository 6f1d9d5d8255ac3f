"""LoSA (arXiv 2402.02887) here, beside LoRA (2106.09685) of as many parameters, and beside training everything.

A decoder that read Python's help texts goes on with the sources of ``asyncio``; a vision transformer that saw a few
drawn images with more of them, where only losses are compared. Bytes of gradients are those of two
data ranks' calls. What a micro-batch keeps for its backward is counted by hooks on what autograd saves. Each kind has
the learning rate of five that was best with a seed of its own. With other seeds each kind trains once, in random
order, everything twice (A/A); the loss on held-out sources is taken on the way, with the seconds of training until
then. After as many seconds means when the first of them is through: others' losses are those between two points.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import _table as table
from benchmarks._ratio import Ratio, ratio
from benchmarks._saved_bytes import SavedBytes
from engine.config.run_config import RunConfig, parse
from engine.footprint.flops import parameters, workload_of
from engine.footprint.side_factors import adapts, side_parameters
from engine.launch.pool import LocalPool
from engine.model.workloads.text import DecoderBlueprint
from engine.parallel.build import single_rank_axes
from engine.session import Session
from profilers.model.run_summary import RunSummary

NAME, KEPT = "systems_adapted", table.RESULTS / "systems_adapted.json"
FULL, LORA, LOSA, AGAIN = "everything", "LoRA", "LoSA", "again"
KINDS: dict[str, dict[str, Any]] = {FULL: {}, LORA: {"train__adapt": "lora"}, LOSA: {"train__adapt": "losa"}}
_SIDE = (5e-3, 1e-2, 2e-2, 4e-2, 8e-2)
RATES = {FULL: (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), LORA: _SIDE, LOSA: _SIDE}
SEEDS, TRIED_SEED = 3, 100
#: Of what training everything keeps.
MOST_KEPT = 0.2


class Case(NamedTuple):
    """What learns, where its measurements are kept, what it goes on with, and ranks that have as many parameters within
    1.6 %.
    """

    kept: Path
    tree: dict[str, Any]
    more: dict[str, Any]
    ranks: dict[str, int]


TEXT = Case(
    KEPT,
    {
        "model": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 352},
        "data": {"sequence_length": 128},
        "batch": {"micro_batch": 8, "global_batch": 8},
    },
    {"data__path": str(Path(asyncio.__file__).parent)},
    {LORA: 4, LOSA: 26},
)
IMAGES = Case(
    table.RESULTS / f"{NAME}_images.json",
    {"model": {"workload": "vision"}, "batch": {"micro_batch": 32, "global_batch": 32}},
    {},
    {LORA: 2, LOSA: 14},
)


class Size(NamedTuple):
    """Steps before, after, and while a rate is chosen; steps between two losses."""

    before: int = 120
    steps: int = 100
    tried: int = 40
    every: int = 20


def config_of(kind: str = FULL, case: Case = TEXT, **more: Any) -> RunConfig:
    """The small model's; beside a frozen one ``train__resume`` is still to be named."""
    train = {"learning_rate": 2e-3, "validation_batches": 8, "timeout_seconds": 3600.0}
    tree = case.tree | {"train": train, "device": "cpu"}
    rank = {"train__adapt_rank": case.ranks[kind]} if kind in case.ranks else {}
    values = KINDS[kind] | rank | more
    return parse(tree).with_values({key.replace("__", "."): value for key, value in values.items()})


def learned(kind: str) -> int:
    """Parameters that it trains."""
    config = config_of(kind)
    return side_parameters(config) if adapts(config) else parameters(workload_of(config))


def run(size: Size, case: Case = TEXT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each run. Bytes are those of text."""
    kept = table.kept(case.kept)
    kept.setdefault("size", size._asdict())
    if case == TEXT and "saved" not in kept:
        kept["saved"] = {kind: saved_bytes(kind) for kind in KINDS}
        table.keep(case.kept, kept)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        bases = _Bases(session, size, case)
        _choose_rates(session, bases, size, kept)
        if case == TEXT and "bytes" not in kept:
            kept["bytes"] = {kind: _bytes(session, bases, kind) for kind in KINDS}
            table.keep(case.kept, kept)
        _take_losses(session, bases, size, kept)
    return kept


class _Bases:
    """Runs to go on from, one for each seed, made when they are first asked for."""

    def __init__(self, session: Session, size: Size, case: Case) -> None:
        self._session, self._size, self._found, self.case = session, size, dict[int, str](), case

    def of(self, seed: int) -> str:
        """Its folder."""
        if seed not in self._found:
            steps = self._size.before
            values = {"train__seed": seed, "train__steps": steps, "checkpoint__every_steps": steps}
            config = config_of(FULL, self.case, **values)
            summary = _summary(self._session, config)
            self._found[seed] = str(self._session.home / summary.id)
        return self._found[seed]

    def tuned(self, kind: str, seed: int, steps: int, **more: Any) -> RunConfig:
        """One that goes on from there."""
        values = {
            "train__resume": self.of(seed),
            "train__seed": seed,
            "train__steps": self._size.before + steps,
        }
        return config_of(kind, self.case, **values | self.case.more | more)


def saved_bytes(kind: str) -> int:
    """The most that autograd saves at once in one micro-batch's forward and loss."""
    config = config_of(kind)
    decoder = DecoderBlueprint(config).stage(range(4), single_rank_axes())
    tokens = torch.randint(256, (8, 128), generator=torch.Generator().manual_seed(0))
    with SavedBytes(tokens, decoder.rotary) as counter:
        loss = decoder.loss(decoder(tokens), tokens)
    loss.backward()
    return counter.peak


def _summary(session: Session, config: RunConfig) -> RunSummary:
    outcome, summary = session.execute(config, {}, lambda: False)
    assert outcome.good, outcome
    return summary


def _choose_rates(session: Session, bases: _Bases, size: Size, kept: dict[str, Any]) -> None:
    for kind, rates in RATES.items():
        for rate in rates:
            if (name := f"{kind}, {rate:g}") not in kept.setdefault("tried", {}):
                config = bases.tuned(kind, TRIED_SEED, size.tried, train__learning_rate=rate)
                kept["tried"][name] = _summary(session, config).validation_loss
                table.keep(bases.case.kept, kept)


def best_rate(kept: dict[str, Any], kind: str) -> float:
    """Of those that were tried."""
    return min(RATES[kind], key=lambda rate: kept["tried"][f"{kind}, {rate:g}"])


def _bytes(session: Session, bases: _Bases, kind: str) -> int:
    """Of the gradients that two data ranks average in a step, by the counter of collectives."""
    more = {"parallel__dp": 2, "batch__micro_batch": 4, "train__warmup": 1, "train__validation_batches": 0}
    config = bases.tuned(kind, TRIED_SEED, 4, **more, profile__budget=None)
    rows = _summary(session, config).communication
    return round(sum(row.bytes for row in rows if row.axis == "dp"))


def _take_losses(session: Session, bases: _Bases, size: Size, kept: dict[str, Any]) -> None:
    names = [*KINDS, AGAIN]
    for seed in range(SEEDS):
        for name in random.sample(names, len(names)):
            if (run := f"{name}, seed {seed}") in kept.setdefault("runs", {}):
                continue
            kind = FULL if name == AGAIN else name
            more = {"train__learning_rate": best_rate(kept, kind), "train__validate_every": size.every}
            summary = _summary(session, bases.tuned(kind, seed, size.steps, **more))
            row = summary.adapted
            assert kind == FULL or (row is not None and row.kept)
            curve = [(one.step, one.loss, one.seconds) for one in summary.quality]
            kept["runs"][run] = {"step": float(np.median(summary.step_samples)), "curve": curve}
            table.keep(bases.case.kept, kept)


HEADER = [
    "trained",
    "parameters",
    "gradients of two data ranks, bytes",
    "kept by a micro-batch, of everything's",
    "a step, of everything's",
    "learning rate",
    "loss after as many steps, by seed",
    "after as many seconds",
]


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each kind, and of the first one again; of images parameters and bytes are not counted."""
    found = []
    for kind in KINDS:
        time = "" if kind == FULL else time_of(kept, kind).plain()
        counted = ["", "", ""]
        if "bytes" in kept:
            counted = [f"{learned(kind):,}", f"{kept['bytes'][kind]:,}", f"{share_kept(kept, kind):.1%}"]
        found.append([kind, *counted, time, f"{best_rate(kept, kind):g}", *_told(kept, kind)])
    again = ["everything again (A/A)", "", "", "", time_of(kept, AGAIN).plain(), ""]
    return [*found, [*again, *_told(kept, AGAIN)]]


def _told(kept: dict[str, Any], kind: str) -> list[str]:
    return [", ".join(f"{one:.3f}" for one in losses(kept, kind, end)) for end in ("steps", "seconds")]


def share_kept(kept: dict[str, Any], kind: str) -> float:
    """Of what training everything keeps for its backward."""
    return float(kept["saved"][kind] / kept["saved"][FULL])


def time_of(kept: dict[str, Any], kind: str) -> Ratio:
    """A step's seconds over those of training everything; one of each seed."""
    return ratio(*(np.array([one["step"] for one in _runs(kept, name)]) for name in (kind, FULL)))


def losses(kept: dict[str, Any], kind: str, end: str) -> list[float]:
    """By seed, after as many steps or as many seconds as the first one needed."""
    found = []
    for seed, one in enumerate(_runs(kept, kind)):
        curve = np.array(one["curve"])
        if end == "steps":
            found.append(float(curve[-1, 1]))
            continue
        through = min(kept["runs"][f"{name}, seed {seed}"]["curve"][-1][2] for name in KINDS)
        found.append(float(np.interp(through, curve[:, 2], curve[:, 1])))
    return found


def _runs(kept: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [kept["runs"][f"{kind}, seed {seed}"] for seed in range(SEEDS)]


def above(kept: dict[str, Any], kind: str, other: str, end: str) -> float:
    """By how much the mean loss of one kind is above that of another."""
    return float(np.mean(losses(kept, kind, end)) / np.mean(losses(kept, other, end)) - 1)


def title(kept: dict[str, Any], case: Case = TEXT) -> str:
    """What was measured."""
    size = kept["size"]
    if case == IMAGES:
        frozen, first, then = "vision transformer", "drawn images", "more"
    else:
        frozen, first, then = "decoder", "help texts", "sources"
    steps = f"{size['before']} steps of {first}, then {size['steps']} steps of {then}"
    return f"Beside a frozen {frozen}: {steps}, {SEEDS} seeds"
