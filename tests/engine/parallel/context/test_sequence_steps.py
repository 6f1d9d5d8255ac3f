"""Steps over whole documents beside each document computed alone, by plain modules."""

from __future__ import annotations

import random
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks import _plain as plain
from benchmarks._ranks import whole_weights
from engine.config.errors import InputError, LayoutError
from engine.config.knobs.facts import Search
from engine.config.knobs.suggestions import groups_of_documents
from engine.config.layout import longest_document, sequence_degrees
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation.rules import check
from engine.lifecycle import notes_of
from engine.model.data import open_documents
from engine.parallel.build import build_stages
from engine.parallel.context import sequence_steps
from engine.parallel.context.sequence_costs import SequenceCosts, costs_by_formula
from engine.parallel.context.sequence_measure import (
    attention_bytes,
    fit_coefficients,
    middle_of,
    shapes_of,
)
from engine.parallel.context.sequence_planner import SequenceGroup, SequencePlan
from engine.parallel.context.sequence_steps import DocumentSteps, my_group, share_of
from tests.support.engine.local_sgd_runs import context_of
from tests.support.ranks import on_ranks
from tests.support.runs import small

DOCUMENTS = 8
#: Seconds for a thread that has nothing else to wait for.
PATIENCE = 10.0
MODEL: dict[str, Any] = {
    "model__layers": 2, "model__hidden": 32, "model__heads": 4, "model__kv_heads": 4, "model__ffn_hidden": 48,
    "data__documents": "whole", "data__sequence_length": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Most of them short, some longer than a rank holds, none longer than two do."""
    path, numbers = tmp_path_factory.mktemp("texts"), random.Random(9)
    for number in range(20):
        length = min(80, int(numbers.paretovariate(0.7) * 6))
        text = "".join(numbers.choice("ab cd") for _ in range(length))
        (path / f"{number:02}.txt").write_text(text, "utf-8")
    return str(path)


def one_step(rank: int, config: RunConfig, folder: str) -> tuple[float, dict[str, torch.Tensor]]:
    """A rank's part of the loss, and averaged gradients by name."""
    context = context_of(rank, config, Path(folder))
    stages = build_stages(context)
    assert stages.documents is not None
    context.timer.begin(0)
    stages.documents.load(0, DOCUMENTS)
    loss = stages.documents.run()
    (replica,) = stages.stages.values()
    found = {piece.name: piece.gradient().clone() for piece in replica.pieces()}
    stages.documents.close()
    return loss, found


def document_by_document(config: RunConfig) -> tuple[float, dict[str, torch.Tensor]]:
    """The mean loss of all tokens of the same documents, and its gradients; each one alone, from position 0 on."""
    known = open_documents(config.data, longest_document(config), config.train.seed)
    model = plain.PlainDecoder(plain.Sizes(**asdict(resolve(config.model))), known.longest)
    model.load_state_dict(whole_weights(config))
    tokens = [torch.from_numpy(known.tokens(one)) for one in known.training(0, DOCUMENTS)]
    losses = [
        F.cross_entropy(model.head(model.norm(_blocks(model, one[None, :-1])))[0], one[1:], reduction="sum")
        for one in tokens
    ]
    loss = torch.stack(losses).sum() / sum(len(one) - 1 for one in tokens)
    names = dict(model.named_parameters())
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


def _blocks(model: plain.PlainDecoder, tokens: torch.Tensor) -> torch.Tensor:
    x = model.embedding(tokens)
    for block in model.blocks:
        x = block(x, model.cosine[: tokens.shape[1]], model.sine[: tokens.shape[1]])
    return x


@pytest.mark.parametrize(("dp", "groups"), [(2, 2), (2, "planned"), (4, 2), (4, "planned")])
def test_gradients_are_those_of_each_document_alone(
    tmp_path: Path, texts: str, dp: int, groups: int | str
) -> None:
    shared = {"parallel__dp": dp, "parallel__sequence_groups": groups, "data__path": texts}
    config = small(**MODEL | shared)
    answers = on_ranks(dp, one_step, config, str(tmp_path))
    loss, right = document_by_document(config)
    assert sum(one for one, _ in answers) / dp == pytest.approx(loss, abs=1e-6)
    for _, found in answers:
        assert found.keys() == right.keys()
        assert max((found[name] - right[name]).abs().max().item() for name in right) < 1e-5


def plans_at_costs(rank: int, config: RunConfig, folder: str) -> list[object]:
    """Of the same documents, by ranks that measured something else each time."""
    context, found = context_of(rank, config, Path(folder)), list[object]()
    stages = build_stages(context)
    (replica,) = stages.stages.values()
    for costs in (
        SequenceCosts(1e-3, 1e-9, 0.0),
        SequenceCosts(0.0, 1e-3, 0.0),
        SequenceCosts(0.0, 1e-3, 5.0),
    ):
        steps = DocumentSteps(context, replica, costs)
        steps.load(0, DOCUMENTS)
        found.append(steps.last_plan.micro_batches)
    return found


def test_given_groups_do_not_depend_on_what_was_measured(tmp_path: Path) -> None:
    """A run that goes on from a checkpoint measures anew, and adds up its losses in the same order. A document of 20
    tokens beside seven of 8: by squares it has a rank to itself, by tokens it has not.
    """
    texts = tmp_path / "texts"
    texts.mkdir()
    config = small(**MODEL | {"data__sequence_length": 100}, parallel__dp=2, data__path=str(texts))
    for number in range(9):
        (texts / f"{number}.txt").write_text("12345678", "utf-8")
    longer = open_documents(config.data, 100, config.train.seed).training(0, 1)[0]
    (texts / f"{longer}.txt").write_text("1234567890" * 2, "utf-8")
    for first, *others in on_ranks(2, plans_at_costs, config, str(tmp_path)):
        assert others == [first, first]


def plans_made(rank: int, config: RunConfig, folder: str, steps: int) -> list[tuple[bool, list[int], bool]]:
    """Of each program whether it was solved in the planner's thread, the documents' lengths, and whether its plan was
    taken. Each step's forward waits until the plan of the next one is there, which begins no sooner than that.
    """
    context, made = context_of(rank, config, Path(folder)), list[tuple[bool, list[int], SequencePlan]]()
    computes, is_there, whole = threading.Event(), threading.Event(), sequence_steps.plan_documents
    stages = build_stages(context)
    (replica,), documents = stages.stages.values(), stages.documents
    assert documents is not None

    def planned(lengths: list[int], *arguments: Any) -> SequencePlan:
        ahead = threading.current_thread() is not threading.main_thread()
        assert not ahead or computes.wait(PATIENCE), "the step before does not begin"
        made.append((ahead, lengths, whole(lengths, *arguments)))
        if ahead:
            is_there.set()
        return made[-1][2]

    def forward(*arguments: Any) -> torch.Tensor:
        computes.set()
        assert rank or is_there.wait(PATIENCE), "nothing is planned beside a step"
        return whole_forward(*arguments)

    whole_forward = replica.forward
    sequence_steps.plan_documents, replica.forward = planned, forward  # type: ignore[assignment, method-assign]
    taken = list[SequencePlan]()
    for step in range(steps):
        computes.clear()
        is_there.clear()
        context.timer.begin(step)
        documents.load(step * DOCUMENTS, DOCUMENTS)
        taken.append(documents.last_plan)
        documents.run()
    documents.close()
    return [(ahead, lengths, plan in taken) for ahead, lengths, plan in made]


def test_the_plan_of_a_batch_is_made_once_while_the_step_before_computes(tmp_path: Path, texts: str) -> None:
    """On rank 0 alone. Nobody stands before the first one; that of the step behind the last one is not asked for."""
    config = small(**MODEL, parallel__dp=2, parallel__sequence_groups="planned", data__path=texts)
    first, second = on_ranks(2, plans_made, config, str(tmp_path), 3)
    known = open_documents(config.data, longest_document(config), config.train.seed)
    batches = [known.training(step * DOCUMENTS, DOCUMENTS) for step in range(4)]
    lengths = [[known.length(one) for one in batch] for batch in batches]
    assert first == [
        (False, lengths[0], True), (True, lengths[1], True), (True, lengths[2], True), (True, lengths[3], False),
    ]  # fmt: skip
    assert second == []


def test_a_formula_s_costs_are_its_operations() -> None:
    config = small(**MODEL, parallel__dp=4, parallel__sequence_groups=2)
    costs = costs_by_formula(config, token_bytes=8)
    # Two layers: matrices of 4 x 32 x 32 and 3 x 32 x 48, a head of 32 x 256; scores and their sums over 32 wide heads.
    matrices = 2 * (4 * 32 * 32 + 3 * 32 * 48) + 32 * 256
    assert costs.token_seconds == 6 * matrices
    assert costs.square_seconds == 6 * 2 * 2 * 32
    assert costs.document(10, 2) == pytest.approx((60 * matrices + 100 * 768) / 2 + 8 * 10 / 4 * 1000)


def test_shares_of_a_group_are_its_documents_and_no_more() -> None:
    documents = [torch.arange(4), torch.arange(10, 16), torch.arange(20, 22)]
    shares = [share_of(documents, 4, place) for place in range(4)]
    assert [one.real for one in shares] == [3, 3, 3, 0]
    assert torch.cat([one.inputs[0] for one in shares]).tolist() == [0, 1, 2, 10, 11, 12, 13, 14, 20, 0, 0, 0]
    assert torch.cat([one.targets[0] for one in shares]).tolist()[:9] == [1, 2, 3, 11, 12, 13, 14, 15, 21]
    assert torch.cat([one.places for one in shares]).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 1, 2]
    assert {one.lengths for one in shares} == {(3, 5, 1, 3)}
    idle = share_of([], 1, 0)
    assert idle.real == 0 and idle.inputs.shape == (1, 1)


def test_groups_take_ranks_in_order_and_who_is_behind_them_is_alone() -> None:
    groups = [SequenceGroup(2, (0,)), SequenceGroup(1, (1,))]
    assert [my_group(groups, rank)[::2] for rank in range(4)] == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert my_group(groups, 3)[1] == SequenceGroup(1, ())


def test_costs_are_found_again_from_the_seconds_that_follow_from_them() -> None:
    bytes_ = attention_bytes(layers=3, hidden=64, kv_width=32)
    assert bytes_ == 3 * 4 * 2 * (64 + 32 + 32 + 64)  # queries, keys, values, results; forward and backward
    costs = SequenceCosts(3e-8, 2e-5, 0.004, bytes_, {2: 3e7, 4: 1e6}, {2: 0.001, 4: 0.02}, 3e-4)
    shapes = [shape for degree in (1, 2, 4) for shape in shapes_of(degree, 512, 2048)]
    found = fit_coefficients(
        {shape: costs.group([shape[2]] * shape[1], shape[0]) for shape in shapes}, bytes_
    )
    for name in costs.as_document():
        assert getattr(found, name) == pytest.approx(getattr(costs, name)), name
    none = replace(costs, square_seconds=0.0, latency={2: 0.0, 4: 0.0})
    noisy = {
        shape: none.group([shape[2]] * shape[1], shape[0]) * (1 + 0.01 * (-1) ** place)
        for place, shape in enumerate(shapes)
    }
    found = fit_coefficients(noisy, bytes_)
    assert min(found.square_seconds, found.fixed_seconds, *found.latency.values()) >= 0
    for shape in shapes:
        assert found.group([shape[2]] * shape[1], shape[0]) == pytest.approx(noisy[shape], rel=0.05)


@pytest.mark.parametrize(
    ("longest", "most"), [(64, 64), (64, 256), (1024, 100), (1024, 3), (512, 1500), (8, 5)]
)
def test_no_measured_document_is_longer_than_one_may_be(longest: int, most: int) -> None:
    for degree in (1, 2, 4, 8):
        shapes = shapes_of(degree, longest, most)
        assert len(set(shapes)) == len(shapes) > 1
        for _, count, length in shapes:
            assert 1 <= length <= most and count * length % degree == 0
            assert count * length <= degree * max(longest, most)
        for shape in shapes:  # and those that are measured in its place
            _, count, length = middle_of(shape)
            assert 1 <= length <= shape[2] and count * length % degree == 0


@pytest.mark.parametrize(
    ("values", "key", "remedy"),
    [
        ({"data__documents": "joined", "parallel__sequence_groups": 2}, "parallel.sequence_groups", "to whole"),
        ({"parallel__dp": 3, "parallel__sequence_groups": 2}, "parallel.sequence_groups", "divide dp=3"),
        ({"model__kv_heads": 2, "parallel__dp": 4, "parallel__sequence_groups": 4},
         "parallel.sequence_groups", r"kv_heads=2; legal here: \[1, 2\]"),
        ({"data__longest_document": 41}, "data.longest_document", "holds 40 tokens; raise parallel.sequence_groups"),
        ({"data__documents": "joined", "data__longest_document": 9}, "data.longest_document", "to whole"),
        ({"parallel__tp": 2}, "parallel.tp", "set it to 1"),
        ({"parallel__cp": 2}, "data.documents", "set cp to 1"),
        ({"parallel__pp": 2}, "data.documents", "set pp to 1"),
        ({"parallel__dp": 2, "outer__method": "local"}, "outer.method", "none"),
        ({"memory__sample_tokens": 0.5}, "memory.sample_tokens", "set it to 1"),
        ({"compile": True}, "compile", "set it to false"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_whole_documents_is_one_line_with_a_remedy(
    values: dict[str, Any], key: str, remedy: str
) -> None:
    with pytest.raises(LayoutError, match=remedy) as refused:
        check(small(**MODEL | {"batch__global_batch": 12} | values))
    assert refused.value.field == key


def test_planned_groups_are_of_sizes_that_ranks_and_heads_allow() -> None:
    values = {"parallel__dp": 8, "parallel__sequence_groups": "planned"}
    assert sequence_degrees(small(**MODEL | values)) == (1, 2, 4)
    assert longest_document(small(**MODEL | values)) == 40 * 4


def test_planned_groups_that_cannot_be_are_noted() -> None:
    values = {"parallel__sequence_groups": "planned", "data__documents": "whole"}
    alone, some = (notes_of(small(**MODEL | values, parallel__dp=dp), []) for dp in (3, 4))
    assert "planned formed no groups" in alone[0] and not some


def test_a_single_document_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("one and no other")
    with pytest.raises(InputError, match="give a folder with a file for each document"):
        open_documents(small(data__path=str(file), data__documents="whole").data, 10, 0)


def test_documents_are_dealt_once_an_epoch_and_held_out_ones_never(texts: str) -> None:
    known = open_documents(small(data__path=texts).data, 30, 3)
    epoch = known.training(0, 19)
    assert sorted(epoch + known.validation(0, 1)) == list(range(20))
    assert sorted(known.training(19, 19)) == sorted(epoch) and known.training(19, 19) != epoch
    files = [one.read_bytes() for one in sorted(Path(texts).iterdir())]
    for number, text in enumerate(files):
        assert known.tokens(number).tolist() == [0xFF, *text[:30]]
        assert known.length(number) == min(30, len(text))
    assert known.cut == sum(len(text) > 30 for text in files)


def test_a_length_that_is_asked_for_cuts_documents_whatever_groups_hold() -> None:
    values = {"parallel__dp": 2, "parallel__sequence_groups": 2}
    assert [longest_document(small(**MODEL | values | {"data__longest_document": one})) for one in (None, 30, 80)] == [
        80, 30, 80,
    ]  # fmt: skip


def test_studies_of_whole_documents_are_offered_the_sizes_that_divide_their_ranks() -> None:
    whole, joined = small(**MODEL), small()
    assert groups_of_documents(Search(whole, 8)) == [1, 2, 4, 8, "planned"]
    assert groups_of_documents(Search(whole, 6)) == [1, 2, "planned"]
    assert groups_of_documents(Search(joined, 8)) is None
