"""Every axis with every other one, and every triple of them once, on 4 and 8 ranks, against one process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.config.layout import accumulation, layout_of
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.runs import execute, small

LOSS_TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-4
SIZES: dict[str, Any] = {
    "model__layers": 8,
    "model__hidden": 32,
    "model__heads": 8,
    "model__kv_heads": 8,
    "model__ffn_hidden": 64,
    "train__validation_batches": 0,
}
#: The balancing loss is taken over a micro-batch of all ranks: one that is the whole batch is the same everywhere.
EXPERTS: dict[str, Any] = {"model__experts": 8, "model__expert_ffn_hidden": 32}
#: One way to use each axis on two ranks; data parallelism comes with what it shards.
AXES: dict[str, dict[str, Any]] = {
    "dp": {"parallel__dp": 2},
    "zero1": {"parallel__dp": 2, "parallel__zero_stage": 1},
    "zero2": {"parallel__dp": 2, "parallel__zero_stage": 2},
    "zero3": {"parallel__dp": 2, "parallel__zero_stage": 3},
    "hsdp": {"parallel__dp": 4, "parallel__zero_stage": 3, "parallel__shard_ranks": 2},
    "tp": {"parallel__tp": 2},
    "ring": {"parallel__cp": 2},
    "ulysses": {"parallel__cp": 2, "parallel__cp_method": "ulysses"},
    "ep": {"parallel__dp": 2, "parallel__ep": 2} | EXPERTS,
    "1f1b": {"parallel__pp": 2},
    "interleaved": {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2},
    "zb_h1": {"parallel__pp": 2, "schedule__kind": "zb_h1"},
    "zb_v": {"parallel__pp": 2, "schedule__kind": "zb_v", "schedule__chunks": 2},
    "breadth_first": {"parallel__pp": 2, "schedule__kind": "breadth_first", "schedule__chunks": 2},
    "layered": {"parallel__pp": 2, "schedule__kind": "layered", "schedule__chunks": 4},
}


def composed(names: tuple[str, ...]) -> RunConfig | None:
    """The axes together on at most 8 ranks, or None where two of them set the same thing or a rule forbids it."""
    values: dict[str, Any] = {}
    for name in names:
        for key, value in AXES[name].items():
            if values.get(key, value) != value and key != "parallel__dp":
                return None
            values[key] = max(value, values.get(key, 0)) if key == "parallel__dp" else value
    if same_kind(names):
        return None
    config = small(**SIZES | values)
    micro_batch = config.batch.global_batch // config.parallel.dp if "ep" in names else 1
    config = config.with_values({"batch.micro_batch": micro_batch})
    legal = layout_of(config).world_size <= 8 and not list(problems(config))
    return config if legal else None


def same_kind(names: tuple[str, ...]) -> bool:
    """Whether two of them are ways to use one axis."""
    kinds = [("dp", "zero1", "zero2", "zero3", "hsdp"), ("ring", "ulysses")]
    kinds.append(("1f1b", "interleaved", "zb_h1", "zb_v", "breadth_first", "layered"))
    return any(len(set(kind) & set(names)) > 1 for kind in kinds)


def combinations(count: int) -> list[tuple[str, ...]]:
    """All legal combinations of so many axes."""
    return [names for names in itertools.combinations(AXES, count) if composed(names) is not None]


@pytest.fixture(scope="module")
def references(session: Session) -> dict[bool, RunSummary]:
    """One process, without and with experts."""
    return one_process(session)


def one_process(session: Session) -> dict[bool, RunSummary]:
    """The runs to compare with."""
    found = {}
    for experts in (False, True):
        config = small(**SIZES | (EXPERTS if experts else {}))
        whole = config.batch.global_batch if experts else 1
        outcome, found[experts] = execute(session, config.with_values({"batch.micro_batch": whole}))
        assert outcome.good, outcome
    return found


def test_every_pair_is_legal_or_known_not_to_be() -> None:
    refused = {
        pair for pair in itertools.combinations(AXES, 2) if not same_kind(pair) and composed(pair) is None
    }
    assert refused == set(itertools.product(("zero2", "zero3", "hsdp"), ("zb_h1", "zb_v")))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("names", combinations(2), ids="-".join)
def test_pairs_equal_one_process(
    session: Session, references: dict[bool, RunSummary], names: tuple[str, ...]
) -> None:
    compare(session, references, names)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("names", combinations(3), ids="-".join)
def test_triples_equal_one_process(
    session: Session, references: dict[bool, RunSummary], names: tuple[str, ...]
) -> None:
    compare(session, references, names)


def compare(session: Session, references: dict[bool, RunSummary], names: tuple[str, ...]) -> None:
    """Losses and gradient norms of three steps."""
    config = composed(names)
    assert config is not None
    assert "ep" not in names or accumulation(config) == 1
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    reference = references["ep" in names]
    assert summary.losses == pytest.approx(reference.losses, abs=LOSS_TOLERANCE, rel=0)
    assert summary.gradient_norms == pytest.approx(reference.gradient_norms, rel=NORM_TOLERANCE)
