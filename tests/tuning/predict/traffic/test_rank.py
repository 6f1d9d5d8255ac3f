"""What a step sends, by formula, against what real ranks record: the same calls in one order, each of the same size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import CommSample
from tests.support.runs import execute, small
from tuning.predict.traffic.calls import RankCalls
from tuning.predict.traffic.rank import Pipeline, traffic_of, why_not_known

Sent = tuple[str, str, str, int, int | None]

BASE: dict[str, Any] = {
    "model__layers": 4,
    "model__hidden": 48,
    "model__heads": 12,
    "model__kv_heads": 6,
    "model__ffn_hidden": 96,
    "batch__global_batch": 8,
    "data__sequence_length": 48,
    "train__validation_batches": 0,
    "profile__budget": None,
    "overlap__bucket_mb": 0.02,
}
EXPERTS = {"model__experts": 4, "model__expert_ffn_hidden": 48}
TIED, GROUPS = {"model__tied_embeddings": True}, {"model__layer_groups": 2}
FULL, SELECTIVE = ({"memory__recompute": kind} for kind in ("full", "selective"))

CASES: list[dict[str, Any]] = [
    {"dp": 2},
    {"dp": 3, "batch__global_batch": 12, "overlap__bucket_mb": 25.0},
    {"dp": 2, "zero_stage": 1},
    {"dp": 3, "zero_stage": 1, "batch__global_batch": 12, "precision": "bf16", "memory__parameters": "bf16"},
    {"dp": 2, "zero_stage": 1, "overlap__gather_with_optimizer": True},
    {"dp": 2, "overlap__delay": 1},
    {"dp": 2, "zero_stage": 1, "overlap__delay": 1, "overlap__gather_with_optimizer": True},
    {"dp": 2, "train__slice_keep": 0.5},
    {"dp": 2, "tp": 2, "train__slice_keep": 2 / 3, "overlap__delay": 1},
    {"dp": 2, "zero_stage": 1, "train__slice_keep": 0.5},
    {"dp": 2, "zero_stage": 2},
    {"dp": 2, "zero_stage": 3},
    {"dp": 3, "zero_stage": 3, "batch__global_batch": 12, "precision": "bf16"},
    {"dp": 2, "zero_stage": 2, "reduce_every_micro_batch": True, "precision": "bf16"},
    {"dp": 4, "zero_stage": 3, "shard_ranks": 2, "reduce_every_micro_batch": True},
    {"dp": 2, "zero_stage": 3, "overlap__prefetch": 1, **FULL},
    {"dp": 2, "zero_stage": 3, "overlap__prefetch": 3},
    {"tp": 2},
    {"tp": 2, "tp_regather": True, "precision": "bf16"},
    {"tp": 2, "tp_regather": True, **FULL},
    {"tp": 2, "overlap__tp_chunks": 2, "tp_regather": True},
    {"tp": 2, "overlap__tp_chunks": 3, **FULL},
    {"tp": 2, "overlap__tp_chunks": 2, **SELECTIVE},
    {"tp": 2, "tp_replicated": ["query_key_value", "attention_output"], "precision": "bf16"},
    {"tp": 2, "tp_replicated": ["gate_up", "down"], "tp_regather": True, "overlap__tp_chunks": 2},
    {
        "tp": 2,
        "tp_replicated": ["embedding", "query_key_value", "attention_output", "gate_up", "down", "head"],
    },
    {"tp": 2, "tp_replicated": ["embedding", "down"], **FULL},
    {"tp": 2, "tp_replicated": ["attention_output", "head"], "cp": 2, **SELECTIVE},
    {"tp": 2, "tp_replicated": ["attention_output", "head"], **FULL, "pp": 2, "kind": "zb_h1"},
    {"tp": 2, "tp_replicated": ["query_key_value", "down"], "overlap__tp_chunks": 2, **SELECTIVE},
    {"tp": 2, "tp_replicated": ["attention_output", "gate_up"], **FULL},
    {"tp": 2, "tp_replicated": ["head", "down"], "dp": 2, "zero_stage": 1},
    {"tp": 2, "tp_replicated": ["embedding", "attention_output"], "dp": 2, "zero_stage": 3},
    {"tp": 2, "dp": 3, "batch__global_batch": 12, "zero_stage": 1, **FULL, "memory__recompute_layers": 2},
    {"tp": 2, "dp": 2, "zero_stage": 3, **SELECTIVE},
    {"tp": 2, "dp": 2, "overlap__bucket_mb": 0.001},
    {"cp": 2},
    {"cp": 3, **FULL},
    {"cp": 3, **SELECTIVE, "dp": 2, "zero_stage": 1},
    {"cp": 3, "cp_method": "ulysses", "tp": 2},
    {"cp": 2, "cp_method": "ulysses", **FULL},
    {"cp": 3, "cp_method": "ulysses", **SELECTIVE},
    {"cp": 2, "cp_method": "ulysses", **SELECTIVE, "pp": 2, "kind": "zb_h1"},
    {"cp": 2, "cp_method": "ring", **SELECTIVE, "pp": 2, "kind": "zb_h1"},
    {"pp": 4},
    {"pp": 3, "kind": "gpipe"},
    {"pp": 2, "kind": "interleaved", "chunks": 2, "dp": 2},
    {"pp": 2, "kind": "zb_h1", "dp": 2},
    {"pp": 2, "kind": "zb_v", "chunks": 2, "tp": 2, "dp": 2, "zero_stage": 1},
    {"pp": 2, "kind": "zb_v", "chunks": 2, "tp": 2, "tp_regather": True, "overlap__tp_chunks": 2},
    {"pp": 2, "kind": "breadth_first", "chunks": 2, "dp": 2, "zero_stage": 3},
    {"pp": 2, "kind": "layered", "chunks": 2, "dp": 2, "zero_stage": 2},
    {"pp": 1, "kind": "breadth_first", "chunks": 2, "dp": 2, "zero_stage": 3},
    {"pp": 3, "dp": 2, "zero_stage": 3},
    {"pp": 3, "dp": 2, "zero_stage": 3, "overlap__prefetch": 1},
    {"pp": 2, "kind": "interleaved", "chunks": 2, "dp": 2, "zero_stage": 3, "batch__micro_batch": 2},
    {"pp": 2, "tp": 2, "dp": 2, "zero_stage": 2, "precision": "bf16"},
    {"tp": 2, **EXPERTS},
    {"dp": 2, "ep": 2, **EXPERTS},
    {"dp": 2, "ep": 2, **EXPERTS, "compression__experts": "lsh"},
    {
        "dp": 4,
        "ep": 4,
        "ep_island": 2,
        **EXPERTS,
        **FULL,
        "compression__experts": "lsh_int8",
        "precision": "bf16",
    },
    {"dp": 2, "ep": 2, **EXPERTS, "compression__experts": "int8"},
    {"dp": 2, "ep": 2, **EXPERTS, **FULL, "model__capacity_factor": 1.25},
    {"dp": 4, "ep": 2, "zero_stage": 1, **EXPERTS, "model__capacity_factor": 2.0},
    {"dp": 2, "cp": 2, "ep": 2, **EXPERTS, **FULL},
    {"dp": 2, "tp": 2, "pp": 2, "ep": 2, **EXPERTS, "kind": "zb_h1"},
    {"dp": 2, "zero_stage": 3, **EXPERTS, "tp": 2, "precision": "bf16"},
    {"dp": 4, "ep": 4, "ep_island": 2, **EXPERTS},
    {"dp": 4, "ep": 4, "ep_island": 2, **EXPERTS, **FULL, "model__capacity_factor": 1.25},
    {"dp": 2, "embedding": "columns"},
    {"dp": 2, "cp": 2, "pp": 2, "embedding": "columns", "zero_stage": 1, "precision": "bf16"},
    {"dp": 2, **TIED},
    {"dp": 2, "pp": 3, **TIED},
    {"dp": 2, "pp": 2, "zero_stage": 1, "overlap__gather_with_optimizer": True, **TIED, **GROUPS},
    {"dp": 2, "zero_stage": 3, **GROUPS, "overlap__prefetch": 1},
    {"dp": 2, "zero_stage": 3, **GROUPS, **FULL, "tp": 2},
    {"dp": 2, "pp": 3, "zero_stage": 3, **TIED, "model__layer_groups": 1},
    {"dp": 2, "pp": 2, "zero_stage": 2, **TIED, "model__layer_groups": 1, "precision": "bf16"},
    {"pp": 2, "kind": "zb_v", "chunks": 2, "dp": 2, "zero_stage": 1, **TIED, **GROUPS},
    {"pp": 2, "kind": "interleaved", "chunks": 2, "dp": 2, "tp": 2, **TIED, "model__layer_groups": 1},
    {"pp": 2, "kind": "zb_h1", "dp": 2, "overlap__delay": 1, **GROUPS, **TIED},
    {"pp": 2, "dp": 2, "ep": 2, **EXPERTS, "model__layer_groups": 1},
    {"dp": 2, "tp": 2, "train__optimizer": "lars"},
    {"pp": 2, "train__optimizer": "lamb", **TIED},
    {"tp": 2, "train__optimizer": "lamb"},
    {"dp": 2, "zero_stage": 3, "train__optimizer": "lars", "model__layer_groups": 1},
    {"dp": 2, "ep": 2, **EXPERTS, "train__optimizer": "lamb", "zero_stage": 1},
    {"pp": 2, "kind": "interleaved", "chunks": 2, "train__optimizer": "lars", **GROUPS},
]
SHORT = {"kind": "schedule__kind", "chunks": "schedule__chunks"}
SHORT |= {name: f"parallel__{name}" for name in ("dp", "tp", "pp", "cp", "ep", "cp_method", "zero_stage")}
SHORT |= {
    name: f"parallel__{name}"
    for name in ("shard_ranks", "tp_regather", "tp_replicated", "embedding", "ep_island")
}
SHORT["reduce_every_micro_batch"] = "parallel__reduce_every_micro_batch"


def config_of(case: dict[str, Any]) -> RunConfig:
    made = small(**BASE | {SHORT.get(key, key): value for key, value in case.items()})
    assert not list(problems(made))
    return made


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


def recorded(session: Session, config: RunConfig) -> list[list[CommSample]]:
    """The calls of the last step, by rank."""
    folders: list[Path] = []
    outcome, _ = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    records, last = RunRecords(folders[0] / RECORDS), config.train.steps - 1
    ranks = range(layout_of(config).world_size)
    rows = [records.table(rank, "comm").rows() for rank in ranks]
    return [[row for row in found if isinstance(row, CommSample) and row.step == last] for found in rows]


def known(config: RunConfig, rank: int) -> RankCalls:
    assert why_not_known(config) is None
    return traffic_of(Pipeline.from_config(config), rank)


def first_difference(config: RunConfig, rank: int, rows: list[CommSample]) -> str | None:
    """Where formula and record part, in words; None if nowhere. What tokens decide has no bytes to compare."""
    expected: list[Sent] = [
        (one.operation, one.axis, one.dtype, one.group_size, one.bytes) for one in known(config, rank).calls
    ]
    found: list[Sent] = [(row.operation, row.axis, row.dtype, row.group_size, row.bytes) for row in rows]
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != (other if one[-1] is not None else (*other[:-1], None)):
            context = slice(max(0, number - 3), number + 3)
            return f"rank {rank}, call {number}: {expected[context]} by formula, {found[context]} recorded"
    same = len(expected) == len(found)
    return None if same else f"rank {rank}: {len(expected)} calls by formula, {len(found)} recorded"


@pytest.mark.drawn(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items()))
def test_ranks_send_what_the_formulas_say(session: Session, case: dict[str, Any]) -> None:
    config = config_of(case)
    for rank, rows in enumerate(recorded(session, config)):
        assert first_difference(config, rank, rows) is None
        assert rows


#: Every value that a key has in ``CASES``.
VALUES = {
    key: [*{str(case[key]): case[key] for case in CASES if key in case}.values()]
    for case in CASES
    for key in case
}
MOST_RANKS = 4


def random_config(numbers: random.Random) -> RunConfig:
    """A legal configuration of few ranks that has a formula, with up to six keys of ``CASES`` at random values."""
    while True:
        keys = numbers.sample(sorted(VALUES), numbers.randint(2, 6))
        experts = EXPERTS if {"ep", "model__capacity_factor"} & set(keys) else {}
        values = BASE | experts | {SHORT.get(key, key): numbers.choice(VALUES[key]) for key in keys}
        try:
            config = small(**values)
            broken = list(problems(config))
        except InputError:
            continue
        if not broken and 1 < layout_of(config).world_size <= MOST_RANKS and why_not_known(config) is None:
            return config


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_ranks_of_random_configurations_send_what_the_formulas_say(session: Session, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"configurations of seed {seed}")
    numbers = random.Random(seed)
    for _ in range(count):
        config = random_config(numbers)
        for rank, rows in enumerate(recorded(session, config)):
            assert first_difference(config, rank, rows) is None, f"seed {seed}: {config.flat()}"


def test_calls_without_a_formula_are_said_to_have_none() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"outer": {"method": "local"}, "parallel": {"dp": 2}}, "outer.method=local"),
        ({"compression": {"method": "topk"}, "parallel": {"dp": 2}}, "compression.method=topk"),
        ({"compile": True, "parallel": {"tp": 2}}, "compile=true"),
        ({"model": {"experts": 4}, "parallel": {"dp": 2, "ep": 2, "zero_stage": 3}}, "parallel.ep with zero"),
    ]
    for values, reason in cases:
        found = why_not_known(parse(values))
        assert found is not None
        assert found.startswith(reason)


def test_rows_from_others_have_no_bytes_and_a_ranks_own_have() -> None:
    config = config_of({"dp": 2, "ep": 2, **EXPERTS})
    calls = [call for call in known(config, 0).calls if call.axis == "ep"]
    assert [call.bytes is None for call in calls[:3]] == [False, False, True]
    bounded = config_of({"dp": 2, "ep": 2, **EXPERTS, "model__capacity_factor": 1.25})
    assert all(call.bytes for call in known(bounded, 0).calls)


def test_one_rank_alone_sends_nothing() -> None:
    assert known(parse({}), 0).calls == []
