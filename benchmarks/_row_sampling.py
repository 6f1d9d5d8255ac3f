"""WTA-CRS (arXiv 2305.15265) here: weight gradients from a part of the tokens, beside all of them and plain sampling.

Scatter is that of activations and gradients of a small decoder that has learned for a while: how far estimates of a
matrix's gradient lie from the exact one, by kind of sampling. Bytes are those of a rank that is built, and of the
formula. Losses are of fine-tuning: a decoder that read Python's help texts goes on with the sources of ``asyncio``.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.dry_run.pool import build_ranks
from engine.footprint.activations import count_sampled_rows, stage_activations
from engine.footprint.footprint import parts_of, plan_of
from engine.model.activation_memory import Activations
from engine.model.decoder import Decoder, Linear
from engine.model.row_sampling import SampledProducts, pick
from engine.model.workloads.text import DecoderBlueprint
from engine.parallel.build import single_rank_axes
from engine.session import Session

NAME, KEPT = "systems_row_sampling", table.RESULTS / "systems_row_sampling.json"
SHARE, SEEDS = 0.3, 3
#: Fine-tuning may lose so much.
WITHIN = 0.02
DRAWS = 40
ALL, OURS, FEWER = "all tokens", "0.3 of them", "0.1 of them"
MANY, OF_MANY = "all tokens of 32 sequences", "0.3 of them, of 32 sequences"
SHARES = {ALL: 1.0, OURS: SHARE, FEWER: 0.1, MANY: 1.0, OF_MANY: SHARE}
#: Each beside the one with all tokens of as many sequences a batch.
BESIDE = {OURS: ALL, FEWER: ALL, OF_MANY: MANY}


class Size(NamedTuple):
    """Steps before fine-tuning, of it, and before scatter is taken."""

    before: int = 150
    steps: int = 120
    learned: int = 80


def config_of(**more: Any) -> RunConfig:
    """The small decoder's."""
    tree = {
        "model": {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 352},
        "data": {"sequence_length": 128},
        "batch": {"micro_batch": 8, "global_batch": 8},
        "train": {"learning_rate": 2e-3, "learning_rate_warmup": 20, "validation_batches": 16,
                  "timeout_seconds": 3600.0},
        "device": "cpu",
    }  # fmt: skip
    return parse(tree).with_values({key.replace("__", "."): value for key, value in more.items()})


def run(size: Size, kept_at: Path = KEPT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each part."""
    kept = table.kept(kept_at)
    if "scatter" not in kept:
        kept["scatter"] = scatter(size.learned)
        table.keep(kept_at, kept)
    if "bytes" not in kept:
        kept["bytes"] = {}
    for kind in (one for one in SHARES if one not in kept["bytes"]):
        kept["bytes"][kind] = _bytes(kind)
        table.keep(kept_at, kept)
    for seed in range(SEEDS):
        missing = [kind for kind in SHARES if f"{kind}, seed {seed}" not in kept.setdefault("loss", {})]
        if missing:
            kept["loss"] |= _losses(missing, seed, size)
            table.keep(kept_at, kept)
    return kept


def scatter(steps: int) -> dict[str, dict[str, float]]:
    """By product and kind of sampling: the mean squared distance from the exact gradient, over its squared length."""
    config = config_of(memory__sample_tokens=SHARE)
    blueprint = DecoderBlueprint(config)
    decoder = blueprint.stage(range(4), single_rank_axes())
    samples = blueprint.samples(decoder)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=2e-3)
    for step in range(steps):
        inputs, targets = samples.training(8 * step, 8)
        decoder.begin_micro_batch(step, 0, inputs, targets)
        decoder.loss(decoder(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return _recorded(decoder, *samples.training(8 * steps, 8))


def _recorded(decoder: Decoder, inputs: Tensor, targets: Tensor) -> dict[str, dict[str, float]]:
    """Of one micro-batch that goes through exactly, with the norms that training left."""
    decoder.begin_micro_batch(0, 0, inputs, targets)
    assert decoder.sampler is not None and decoder.sampler.slots is not None
    slots, groups = decoder.sampler.slots.flatten(), _groups(decoder)
    decoder.keep(Activations())
    read, given = dict[Linear, Tensor](), dict[Linear, Tensor]()
    for *_, matrices in groups.values():
        for one in matrices:
            one.register_forward_hook(lambda module, args, _: read.update({module: args[0].detach()}))
            one.register_full_backward_hook(lambda module, _, out: given.update({module: out[0]}))
    decoder.loss(decoder(inputs), targets).backward()
    return {
        name: _scatter(
            sampled, slots, read[matrices[0]], torch.cat([given[one].flatten(0, 1) for one in matrices], 1)
        )
        for name, (sampled, matrices) in groups.items()
    }


def _groups(decoder: Decoder) -> dict[str, tuple[SampledProducts, list[Linear]]]:
    found: dict[str, tuple[SampledProducts, list[Linear]]] = {}
    for number, block in decoder.blocks.items():
        attention: Any = block.attention
        feed: Any = block.feed_forward
        found |= {
            f"{number} query, key, value": (
                attention.sampled_inputs,
                [attention.query, attention.key, attention.value],
            ),
            f"{number} output": (attention.sampled_output, [attention.output]),
            f"{number} gate, up": (feed.sampled_inputs, [feed.gate, feed.up]),
            f"{number} down": (feed.sampled_output, [feed.down]),
        }
    return found


def _scatter(sampled: SampledProducts, slots: Tensor, x: Tensor, gradient: Tensor) -> dict[str, float]:
    rows = x.flatten(0, 1)
    even = torch.full((len(rows),), 1 / len(rows))
    norms = rows.norm(dim=1)
    ideal = norms * gradient.norm(dim=1)
    kinds = {
        "plain": even,
        "plain, each once": even,
        "norms of inputs": norms / norms.sum(),
        "remembered": sampled.likely(x, slots),
        "ideal": ideal / ideal.sum(),
    }
    exact, kept, random = (
        gradient.t() @ rows,
        count_sampled_rows(len(rows), SHARE),
        torch.Generator().manual_seed(0),
    )
    found = {}
    for kind, likely in kinds.items():
        off = 0.0
        for _ in range(DRAWS):
            if likely is even:
                places = torch.multinomial(likely, kept, kind == "plain", generator=random)
                weights = torch.full((kept,), len(rows) / kept)
            else:
                places, weights = pick(likely, kept, random)
            estimate = (gradient[places] * weights.unsqueeze(1)).t() @ rows[places]
            off += float((estimate - exact).square().sum() / exact.square().sum()) / DRAWS
        found[kind] = off
    return found


def _batch(kind: str) -> dict[str, int]:
    sequences = 32 if kind in (MANY, OF_MANY) else 8
    return {"batch.micro_batch": sequences, "batch.global_batch": sequences}


def _bytes(kind: str) -> dict[str, int]:
    config = config_of(memory__sample_tokens=SHARES[kind]).with_values(_batch(kind))
    (built,) = build_ranks(config, [0])[0]
    said = stage_activations(config, parts_of(config, plan_of(config))[0])
    return {"counted": built.activations.device, "formula": said.device}


def _losses(kinds: list[str], seed: int, size: Size) -> dict[str, dict[str, float]]:
    """On held-out sources, and processor seconds of a step."""
    found = {}
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        first = config_of(train__seed=seed, train__steps=size.before, checkpoint__every_steps=size.before)
        outcome, _ = session.execute(first, {}, lambda: False)
        assert outcome.good, outcome
        (folder,) = (found.parent for found in Path(home).rglob("checkpoints"))
        for kind in kinds:
            config = first.with_values(
                {
                    "train.resume": str(folder),
                    "train.steps": size.before + size.steps,
                    "data.path": str(Path(asyncio.__file__).parent),
                    "memory.sample_tokens": SHARES[kind],
                    "checkpoint.every_steps": None,
                }
                | _batch(kind)
            )
            began = os.times()
            outcome, summary = session.execute(config, {}, lambda: False)
            assert outcome.good, outcome
            ended = os.times()
            found[f"{kind}, seed {seed}"] = {
                "loss": float(summary.validation_loss or 0.0),
                "cpu": sum(ended[:4]) - sum(began[:4]),
            }
    return found


HEADER = [
    "kind",
    "kept by a micro-batch, bytes",
    "by formula",
    "loss after fine-tuning, by seed",
    "over all tokens",
]


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each kind."""
    found = []
    for kind in SHARES:
        counted, said = kept["bytes"][kind]["counted"], kept["bytes"][kind]["formula"]
        found.append([
            kind, f"{counted:,}", f"{said:,}", ", ".join(f"{one:.3f}" for one in _of(kept, kind)),
            f"{lost(kept, kind):+.1%}" if kind in BESIDE else "",
        ])  # fmt: skip
    return found


def _of(kept: dict[str, Any], kind: str) -> list[float]:
    return [kept["loss"][f"{kind}, seed {seed}"]["loss"] for seed in range(SEEDS)]


def lost(kept: dict[str, Any], kind: str) -> float:
    """By how much the mean loss is above that of all tokens."""
    return float(np.mean(_of(kept, kind)) / np.mean(_of(kept, BESIDE[kind])) - 1)


SCATTER_HEADER = [
    "product", "plain", "plain, each once", "norms of inputs", "remembered", "ideal", "remembered / plain",
]  # fmt: skip


def scatter_rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row of each product; the name begins with its layer."""
    return [
        [name, *(f"{of[kind]:.3f}" for kind in SCATTER_HEADER[1:-1]), f"{of['remembered'] / of['plain']:.2f}"]
        for name, of in kept["scatter"].items()
    ]


class Bars(NamedTuple):
    """Products, those that scatter less than plain sampling, and than it without doubles; the mean ratios to these;
    bytes spared, counted and by formula; the loss over that of all tokens, with few and with many a batch.
    """

    products: int
    calmer: int
    calmer_once: int
    ratio: float
    ratio_once: float
    counted: int
    formula: int
    lost: float
    lost_of_many: float


def bars(kept: dict[str, Any]) -> Bars:
    """Of what was measured."""
    ratios, once = (
        np.array([of["remembered"] / of[kind] for of in kept["scatter"].values()])
        for kind in ("plain", "plain, each once")
    )
    whole, part = kept["bytes"][ALL], kept["bytes"][OURS]
    spared = (whole[name] - part[name] for name in ("counted", "formula"))
    calmer = (int((one < 1).sum()) for one in (ratios, once))
    return Bars(
        len(ratios),
        *calmer,
        float(ratios.mean()),
        float(once.mean()),
        *spared,
        lost(kept, OURS),
        lost(kept, OF_MANY),
    )
