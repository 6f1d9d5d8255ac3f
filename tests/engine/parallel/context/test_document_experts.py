"""Experts that see whole documents, beside plain modules that take each token alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import _plain as plain
from engine.config.errors import LayoutError
from engine.config.layout import longest_document
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation.rules import check
from engine.model.data import open_documents
from engine.model.experts.mixture import Text
from engine.model.workloads.blueprint import open_blueprint
from engine.parallel.build import build_stages, single_rank_axes
from tests.support.engine.local_sgd_runs import context_of
from tests.support.engine.mixtures import SHAPE, OtherRanks, activations, mixture
from tests.support.ranks import on_ranks
from tests.support.runs import small

DOCUMENTS, EXPERTS = 8, 4
MODEL: dict[str, Any] = {
    "model__layers": 2, "model__hidden": 32, "model__heads": 4, "model__kv_heads": 4, "model__ffn_hidden": 48,
    "model__experts": EXPERTS, "data__documents": "whole",
}  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Most of them short, none longer than two ranks of 40 tokens hold."""
    path, numbers = tmp_path_factory.mktemp("texts"), random.Random(5)
    for number in range(20):
        length = min(80, int(numbers.paretovariate(0.7) * 6))
        (path / f"{number:02}.txt").write_text(
            "".join(numbers.choice("ab cd") for _ in range(length)), "utf-8"
        )
    return str(path)


def one_step(rank: int, config: RunConfig, folder: str) -> tuple[float, int, int, dict[str, Tensor], Tensor]:
    """A rank's part of the loss, its place on ep, micro-batches, averaged gradients by name, and choices of experts."""
    context = context_of(rank, config, Path(folder))
    stages = build_stages(context)
    assert stages.documents is not None
    for mixed in stages.mixtures().values():
        mixed.load.on = True
    context.timer.begin(0)
    stages.documents.load(0, DOCUMENTS)
    loss = stages.documents.run()
    (replica,) = stages.stages.values()
    found = {piece.name: piece.gradient().clone() for piece in replica.pieces()}
    taken = [mixed.load.take() for mixed in stages.mixtures().values()]
    choices = torch.stack([torch.zeros(EXPERTS).double() if one is None else one[0] for one in taken])
    stages.documents.close()
    return (
        loss,
        0 if (ep := context.groups.ep) is None else ep.rank,
        len(stages.documents.last_plan.micro_batches),
        found,
        choices,
    )


def token_by_token(config: RunConfig) -> tuple[float, dict[str, Tensor]]:
    """The mean loss of the same documents' tokens, balanced over all of them, and its gradients."""
    known = open_documents(config.data, longest_document(config), config.train.seed)
    model = (blueprint := open_blueprint(config, single_rank_axes())).stage(
        range(blueprint.blocks), single_rank_axes(), False
    )
    weights = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    documents = [torch.from_numpy(known.tokens(one)) for one in known.training(0, DOCUMENTS)]
    count = sum(len(one) - 1 for one in documents)
    states = [weights["embedding.weight"][one[:-1]][None] for one in documents]
    loss = torch.zeros(())
    for layer in range(resolve(config.model).layers):
        states = [_attended(weights, f"blocks.{layer}.", x, config) for x in states]
        mixed, balance = _mixed(weights, f"blocks.{layer}.", torch.cat([x[0] for x in states]), config)
        states = [
            x + part[None] for x, part in zip(states, mixed.split([x.shape[1] for x in states]), strict=True)
        ]
        loss = loss + balance
    for x, tokens in zip(states, documents, strict=True):
        logits = F.rms_norm(x[0], x.shape[2:], weights["norm.weight"], 1e-5) @ weights["head.weight"].t()
        text = F.cross_entropy(logits, tokens[1:], reduction="sum") / count
        loss = loss + text
    gradients = torch.autograd.grad(loss, list(weights.values()))
    return loss.item(), dict(zip(weights, gradients, strict=True))


def _attended(weights: dict[str, Tensor], block: str, x: Tensor, config: RunConfig) -> Tensor:
    shape = resolve(config.model)
    attention = plain.Attention(
        plain.Sizes(1, shape.hidden, shape.heads, shape.kv_heads, shape.ffn_hidden, shape.vocabulary)
    )
    own = {name: weights[f"{block}attention.{name}"] for name, _ in attention.named_parameters()}
    cosine, sine = plain.angles(x.shape[1], shape.head_dim)
    normed = F.rms_norm(x, x.shape[2:], weights[f"{block}attention_norm.weight"], 1e-5)
    out: Tensor = x + torch.func.functional_call(attention, own, (normed, cosine, sine))
    return out


def _mixed(
    weights: dict[str, Tensor], block: str, tokens: Tensor, config: RunConfig
) -> tuple[Tensor, Tensor]:
    """Of each token [tokens, hidden] what its two best experts make of it; and the weighted loss of balance."""
    tokens = F.rms_norm(tokens, tokens.shape[1:], weights[f"{block}feed_forward_norm.weight"], 1e-5)
    router, gate, up, down = (
        weights[f"{block}feed_forward.{name}.weight"] for name in ("router", "gate", "up", "down")
    )
    probabilities = (tokens @ router.t()).softmax(dim=-1)
    shares, outputs = torch.zeros(EXPERTS), []
    for token, row in zip(tokens, probabilities, strict=True):
        first, second = row.argsort(descending=True)[:2].tolist()
        for one in (first, second):
            shares[one] += 1 / (2 * len(tokens))
        outputs.append(
            sum(
                row[one]
                / (row[first] + row[second])
                * (down[one] @ (F.silu(gate[one] @ token) * (up[one] @ token)))
                for one in (first, second)
            )
        )
    balance = config.model.balance_weight * EXPERTS * (shares * probabilities.mean(dim=0)).sum()
    return torch.stack(outputs), balance


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("dp", "values"),
    [
        (1, {}),
        (2, {"parallel__ep": 2, "parallel__sequence_groups": 2}),
        (4, {"parallel__ep": 2, "parallel__sequence_groups": "planned"}),
        (4, {"parallel__ep": 4, "parallel__ep_island": 2, "parallel__sequence_groups": 2}),
        (4, {"parallel__ep": 4, "parallel__sequence_groups": "planned", "memory__recompute": "full"}),
    ],
)
@pytest.mark.parametrize("several", [False, True], ids=["one-micro-batch", "several"])
def test_gradients_are_those_of_each_token_alone(
    tmp_path: Path, texts: str, dp: int, values: dict[str, Any], several: bool
) -> None:
    # Experts are balanced over a micro-batch: over all documents only where that holds them all.
    size = {"data__sequence_length": 80 // dp if several else 400}
    weight = 0.0 if several else 0.5
    config = small(
        **MODEL | size | values | {"parallel__dp": dp, "data__path": texts, "model__balance_weight": weight}
    )
    answers = on_ranks(dp, one_step, config, str(tmp_path))
    loss, right = token_by_token(config)
    assert {counted > 1 for _, _, counted, _, _ in answers} == {several}
    if several:
        assert sum(one for one, *_ in answers) / dp == pytest.approx(loss, abs=1e-6)
    known = open_documents(config.data, longest_document(config), config.train.seed)
    tokens = sum(map(known.length, known.training(0, DOCUMENTS)))
    counted = torch.stack([choices for *_, choices in answers]).sum(dim=0).sum(dim=1)
    assert counted.tolist() == [2 * tokens] * 2, "padding is not counted"
    for _, place, _, found, _ in answers:
        assert found.keys() == right.keys()
        for name, gradient in found.items():
            wanted = right[name]
            if wanted.shape != gradient.shape:
                wanted = wanted.chunk(config.parallel.ep)[place]
            assert (gradient - wanted).abs().max().item() < 1e-5, name


def test_balance_of_unequal_ranks_and_micro_batches_is_that_of_all_their_text() -> None:
    shape = replace(SHAPE, balance_weight=0.5)
    x = activations().flatten(0, 1)[:, None]
    whole, wanted = mixture(shape), list[Tensor]()
    # Of 20 tokens in a step two ranks have 7 and 4 in its first micro-batch, 2 and 7 in its second.
    parts = {0: ((0, 7), (7, 11)), 1: ((11, 13), (13, 20))}
    for first, second in parts.values():
        part = x[first[0] : second[1]]
        whole(part)
        assert whole.report is not None and whole.report.balance_loss is not None
        wanted.append(whole.report.balance_loss * len(part) / 20)
    found = torch.zeros(())
    for ranks in parts.values():
        for mine, other in (ranks, ranks[::-1]):
            counts = whole.router(x[slice(*other)].flatten(0, 1)).counts()
            module = mixture(shape, data=OtherRanks(counts))
            module.text = Text(mine[1] - mine[0], 20 / 2)
            padded = torch.cat((x[slice(*mine)], x[20:23]))
            out = module(padded)
            assert module.report is not None and module.report.balance_loss is not None
            assert int(module.report.tokens_per_expert.sum()) == 2 * (mine[1] - mine[0])
            assert out.shape == padded.shape
            found = found + module.report.balance_loss / 2
    assert found.item() == pytest.approx(sum(one.item() for one in wanted), rel=1e-6)


@pytest.mark.parametrize(
    ("values", "key", "remedy"),
    [
        ({"model__capacity_factor": 1.25}, "model.capacity_factor", "leave it out"),
        ({"memory__expert_slots": 1}, "memory.expert_slots", "leave it out"),
        ({"parallel__dp": 2, "parallel__ep": 2, "compression__experts": "lsh", "batch__global_batch": 12},
         "compression.experts", "none, bf16 or int8"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_experts_of_whole_documents_is_one_line(
    values: dict[str, Any], key: str, remedy: str
) -> None:
    with pytest.raises(LayoutError, match=remedy) as refused:
        check(small(**MODEL | values))
    assert refused.value.field == key
