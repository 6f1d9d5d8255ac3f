"""Whole documents over groups of ranks: losses and gradients of one process with the same documents."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.model.data import open_documents
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.support.runs import execute, small

#: Documents are cut there: what four ranks with 64 tokens each hold.
LONGEST = 256
LAYERS, HIDDEN, KV_WIDTH = 2, 64, 32
MODEL: dict[str, Any] = {
    "model__layers": LAYERS, "model__hidden": HIDDEN, "model__heads": 8, "model__kv_heads": 4,
    "model__ffn_hidden": 96, "data__documents": "whole", "data__sequence_length": LONGEST,
    "data__longest_document": LONGEST, "train__validation_batches": 2, "profile__budget": None,
}  # fmt: skip
SHARED: dict[str, dict[str, Any]] = {
    "alone": {"dp": 2},
    "two of two": {"dp": 2, "sequence_groups": 2},
    "twice two, ZeRO 1": {"dp": 4, "sequence_groups": 2, "zero_stage": 1},
    "four, ZeRO 2": {"dp": 4, "sequence_groups": 4, "zero_stage": 2},
    "planned": {"dp": 4, "sequence_groups": "planned"},
    "planned, little room": {"dp": 4, "sequence_groups": "planned", "length": 64},
    "planned, ZeRO 3, recomputed": {
        "dp": 4, "sequence_groups": "planned", "zero_stage": 3, "length": 64, "recompute": "selective",
    },
    "given, little room, recomputed": {"dp": 4, "sequence_groups": 4, "length": 64, "recompute": "full"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts of long-tailed lengths, the longest as long as can be."""
    path, numbers = tmp_path_factory.mktemp("texts"), random.Random(4)
    for number in range(60):
        length = LONGEST if number % 20 == 3 else min(LONGEST, int(numbers.paretovariate(0.9) * 12))
        text = "".join(numbers.choice("abcde fghi jklm") for _ in range(length))
        (path / f"{number:02}.txt").write_text(text, "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def alone(session: Session, folder: str) -> RunSummary:
    """One process."""
    outcome, summary = execute(session, small(**MODEL, data__path=folder))
    assert outcome.good, outcome
    return summary


@pytest.mark.parametrize("values", SHARED.values(), ids=SHARED)
def test_losses_and_gradients_are_those_of_one_process_whoever_shares_which_document(
    session: Session, folder: str, alone: RunSummary, values: dict[str, Any]
) -> None:
    keys = {"length": "data__sequence_length", "recompute": "memory__recompute"}
    given = {keys.get(name, f"parallel__{name}"): value for name, value in values.items()}
    outcome, summary = execute(session, small(**MODEL | given, data__path=folder))
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(alone.losses, abs=1e-5, rel=0)
    assert summary.gradient_norms == pytest.approx(alone.gradient_norms, rel=1e-5)
    assert summary.validation_loss == pytest.approx(alone.validation_loss, abs=1e-5)
    assert summary.tokens_per_step == alone.tokens_per_step
    assert not any("are cut there" in note for note in summary.notes)
    _check_rows(summary, 3 if given.get("memory__recompute", "none") != "none" else 2)


def _check_rows(summary: RunSummary, passes: int) -> None:
    """Groups take every document once, and exchange the values that follow from their tokens: queries, keys, values and
    what comes back, in so many passes.
    """
    payload, first = dict[str, float](), summary.measured_from_step
    assert first is not None
    for row in summary.sequence_groups:
        if row.degree > 1 and row.step >= first:
            each = -(-row.tokens // row.degree)
            values = passes * LAYERS * 2 * (HIDDEN + KV_WIDTH)
            share = row.degree / summary.world_size / summary.measured_steps
            axis = f"sequence_{row.degree}"
            payload[axis] = payload.get(axis, 0.0) + each * values * 4 * share
    counted = {row.axis: row.bytes for row in summary.communication if row.axis.startswith("sequence")}
    assert counted == pytest.approx(payload, rel=1e-9)
    for step in range(3):
        assert sum(row.documents for row in summary.sequence_groups if row.step == step) == 8
    assert [plan.step for plan in summary.sequence_plans] == [0, 1, 2]


def test_all_ranks_plan_with_what_groups_of_earlier_steps_took(session: Session, folder: str) -> None:
    """Each tells of its group the same planned seconds, which are those of the factors that the plan was made with."""
    config = small(
        **MODEL | {"train__steps": 7, "data__path": folder},
        parallel__dp=4,
        parallel__sequence_groups="planned",
    )
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    factors = [plan.factors for plan in summary.sequence_plans]
    assert factors[0] == {"1": 1.0, "2": 1.0, "4": 1.0}
    assert any(value != 1.0 for value in factors[-1].values())
    records, planned = RunRecords(session.home / summary.id / "records"), dict[tuple[int, ...], set[float]]()
    for rank in records.ranks():
        for event in records.events(rank):
            if event.kind == "sequence_groups":
                assert event.data["factors"] == factors[event.data["step"]]
                for place, (number, degree, documents, tokens, seconds, _) in enumerate(event.data["groups"]):
                    key = event.data["step"], place, number, degree, documents, tokens
                    planned.setdefault(key, set()).add(seconds)
    assert len({step for step, *_ in planned}) == 7
    assert all(len(found) == 1 for found in planned.values())


def test_a_rank_without_a_token_for_many_steps_ends_nothing(session: Session, tmp_path: Path) -> None:
    """Five tokens a step are two for each of the first two of four ranks, one for the third and none for the last."""
    config = small(
        **MODEL | {"data__longest_document": None, "data__path": str(tmp_path), "train__steps": 6},
        parallel__dp=4, parallel__sequence_groups=4, batch__global_batch=4,
    )  # fmt: skip
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_text("x", "utf-8")
    order = open_documents(config.data, LONGEST, config.train.seed).training(0, 24)
    for number in order[::4]:
        (tmp_path / f"{number:02}.txt").write_text("xy", "utf-8")
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.tokens_per_step == 5 and len(summary.losses) == 6


def test_a_document_that_no_group_holds_is_cut_and_that_is_said(session: Session, folder: str) -> None:
    shorter = {"data__sequence_length": 100, "data__longest_document": None}
    outcome, summary = execute(session, small(**MODEL | shorter, data__path=folder))
    assert outcome.good, outcome
    (note,) = (one for one in summary.notes if "are cut there" in one)
    longer = sum(len(one.read_text("utf-8")) > 100 for one in Path(folder).iterdir())
    assert f"{longer} of 60 documents are longer than 100 tokens" in note
