"""A dry run tells what real ranks hold: compared with ranks that were built, run and counted another way."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.config.layout import layout_of
from engine.config.presets import PRESETS
from engine.config.run_config import RunConfig, parse
from engine.config.sections import TensorPart
from engine.dry_run.check import DryRun, dry_run
from engine.dry_run.pool import BuildError, build_ranks
from engine.footprint.footprint import Footprint
from tests.engine.config.validation.test_rules import drawn
from tests.support.engine.rank_memory import Real, real
from tests.support.ranks import on_ranks

RANKS = 4
SMALL: dict[str, Any] = {
    "data": {"sequence_length": 32},
    "batch": {"global_batch": 8, "micro_batch": 2},
    "model": {"layers": 4, "hidden": 48, "heads": 4, "kv_heads": 2, "ffn_hidden": 96},
}
#: Name -> what differs from SMALL; all on four ranks.
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {"parallel.dp": 4},
    "tp and pp": {"parallel.tp": 2, "parallel.pp": 2},
    "zero 1": {"parallel.dp": 4, "parallel.zero_stage": 1},
    "zero 2": {"parallel.dp": 4, "parallel.zero_stage": 2},
    "zero 3 with tp": {"parallel.dp": 2, "parallel.tp": 2, "parallel.zero_stage": 3},
    "hybrid": {"parallel.dp": 4, "parallel.zero_stage": 3, "parallel.shard_ranks": 2},
    "bf16 and zero 3": {"parallel.dp": 2, "parallel.pp": 2, "parallel.zero_stage": 3, "precision": "bf16"},
    "bf16": {"parallel.dp": 2, "parallel.tp": 2, "precision": "bf16"},
    "bf16 and experts": {"parallel.dp": 4, "parallel.zero_stage": 2, "precision": "bf16", "model.experts": 4},
    "slices": {"parallel.tp": 2, "parallel.dp": 2, "parallel.tp_regather": True},
    "slices and pipeline": {"parallel.tp": 2, "parallel.pp": 2, "parallel.tp_regather": True,
                            "schedule.kind": "zb_h1"},
    "slices and recompute": {"parallel.tp": 2, "parallel.dp": 2, "parallel.zero_stage": 3,
                             "parallel.tp_regather": True, "memory.recompute": "full",
                             "memory.recompute_layers": 2, "precision": "bf16"},
    "slices and experts": {"parallel.tp": 2, "parallel.dp": 2, "parallel.tp_regather": True,
                           "model.experts": 4, "memory.recompute": "selective"},
    "whole feed-forward": {"parallel.tp": 2, "parallel.dp": 2,
                           "parallel.tp_replicated": ["gate_up", "down"]},
    "whole attention": {"parallel.tp": 2, "parallel.pp": 2, "schedule.kind": "zb_h1",
                        "parallel.tp_replicated": ["query_key_value", "attention_output"]},
    "some whole": {"parallel.tp": 2, "parallel.pp": 2, "schedule.kind": "zb_h1",
                   "parallel.tp_replicated": ["query_key_value", "gate_up"]},
    "whole ends": {"parallel.tp": 2, "parallel.pp": 2, "parallel.tp_replicated": ["embedding", "head"]},
    "all whole": {"parallel.tp": 2, "parallel.dp": 2, "parallel.zero_stage": 3, "precision": "bf16",
                  "parallel.tp_replicated": list(get_args(TensorPart))},
    "whole and recompute": {"parallel.tp": 4, "memory.recompute": "full", "model.kv_heads": 4,
                            "parallel.tp_replicated": ["attention_output", "down"]},
    "slices of gradients": {"parallel.dp": 4, "parallel.zero_stage": 2, "batch.micro_batch": 1,
                            "parallel.reduce_every_micro_batch": True},
    "bf16 parameters": {"parallel.dp": 4, "parallel.zero_stage": 1, "precision": "bf16",
                        "memory.parameters": "bf16"},
    "ring": {"parallel.dp": 2, "parallel.cp": 2},
    "ulysses": {"parallel.tp": 2, "parallel.cp": 2, "parallel.cp_method": "ulysses", "model.kv_heads": 4},
    "experts": {"parallel.dp": 4, "model.experts": 4},
    "spread experts": {"parallel.dp": 4, "parallel.ep": 2, "model.experts": 4, "model.capacity_factor": 1.5},
    "recompute": {"parallel.dp": 2, "parallel.pp": 2, "memory.recompute": "full"},
    "selective": {"parallel.dp": 2, "parallel.tp": 2, "memory.recompute": "selective"},
    "two chunks": {"parallel.dp": 2, "parallel.pp": 2, "schedule.kind": "interleaved", "schedule.chunks": 2},
    "uneven": {"parallel.dp": 2, "parallel.pp": 2, "schedule.stage_layers": [1, 3]},
    "split backward": {"parallel.dp": 2, "parallel.pp": 2, "schedule.kind": "zb_h1"},
    "tied": {"parallel.dp": 2, "parallel.pp": 2, "model.tied_embeddings": True},
    "tied, zero 3": {"parallel.dp": 4, "parallel.zero_stage": 3, "model.tied_embeddings": True},
    "shared layers": {"parallel.dp": 2, "parallel.pp": 2, "parallel.zero_stage": 1, "model.layer_groups": 1},
    "shared layers, zero 3": {"parallel.dp": 2, "parallel.pp": 2, "parallel.zero_stage": 3,
                              "model.tied_embeddings": True, "model.layer_groups": 1},
    "masked": {"parallel.dp": 2, "parallel.tp": 2, "data.documents": "masked"},
    "masked and bf16": {"parallel.dp": 4, "data.documents": "masked", "precision": "bf16"},
    "masked and selective": {"parallel.dp": 4, "data.documents": "masked", "memory.recompute": "selective"},
    "masked and recompute": {"parallel.dp": 4, "data.documents": "masked", "memory.recompute": "full",
                             "memory.recompute_layers": 2, "precision": "bf16"},
    "shared chunks": {"parallel.dp": 2, "parallel.pp": 2, "schedule.kind": "zb_v", "schedule.chunks": 2,
                      "model.tied_embeddings": True, "model.layer_groups": 2},
}  # fmt: skip


def config_of(name: str, **more: Any) -> RunConfig:
    return parse(SMALL).with_values(LAYOUTS[name] | more)


@functools.cache
def looked(name: str) -> DryRun:
    return dry_run(config_of(name))


def real_ranks(rank: int, folder: str) -> dict[str, Real]:
    return {name: real(rank, config_of(name), Path(folder)) for name in LAYOUTS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Real]]:
    return on_ranks(RANKS, real_ranks, str(tmp_path_factory.mktemp("records")))


def row_of(found: DryRun, config: RunConfig, rank: int) -> Footprint:
    return found.stages[layout_of(config).coordinates(rank).pp]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_real_ranks_hold_what_a_dry_run_says(name: str, ranks: list[dict[str, Real]]) -> None:
    config = config_of(name)
    found = looked(name)
    assert found.legal
    assert not found.mismatches
    for rank, all_real in enumerate(ranks):
        row, real = row_of(found, config, rank), all_real[name]
        assert row.parameters == real.parameters
        assert row.parameter_bytes == real.parameter_bytes
        # A slice of the buckets may touch another number of parameters, each with a counter of 4 bytes.
        assert row.optimizer_bytes == pytest.approx(real.state_bytes, abs=40)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", LAYOUTS)
def test_real_forwards_save_what_a_dry_run_says(name: str, ranks: list[dict[str, Real]]) -> None:
    config = config_of(name)
    layout = layout_of(config)
    for place in range(layout.pp):
        rank = place * (RANKS // layout.pp)
        (built,) = build_ranks(config, [rank])
        kept = [stage.activations.device for stage in built]
        assert kept == pytest.approx(ranks[rank][name].saved_bytes, rel=0.001)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", LAYOUTS)
def test_formulas_agree_with_what_was_built(name: str) -> None:
    found = looked(name)
    for row, formula in zip(found.stages, found.formulas, strict=True):
        assert row.parameters == formula.parameters
        assert row.gradient_bytes == formula.gradient_bytes
        assert row.optimizer_bytes == pytest.approx(formula.optimizer_bytes, rel=0.01)
        assert row.activation_bytes == pytest.approx(formula.activation_bytes, rel=0.02)


def test_rows_in_buckets_are_kept_as_the_formula_says() -> None:
    """So many that they fall evenly on the experts: a dry run has a few rows more where they do not."""
    buckets = {"compression.experts": "lsh", "compression.expert_rate": 0.25, "parallel.ep": 2}
    whole, found = dry_run(config_of("experts")), dry_run(config_of("experts", **buckets))
    for row, formula, all_rows in zip(found.stages, found.formulas, whole.stages, strict=True):
        assert row.activation_bytes == pytest.approx(formula.activation_bytes, rel=0.02)
        assert row.activation_bytes < 0.8 * all_rows.activation_bytes


TRILLION: dict[str, Any] = {
    "model.preset": "1t",
    "parallel.tp": 8,
    "parallel.pp": 64,
    "parallel.dp": 2,
    "batch.global_batch": 1024,
    "batch.micro_batch": 1,
    "data.sequence_length": 2048,
    "precision": "bf16",
}


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "more",
    [{}, {"parallel.pp": 1, "parallel.dp": 128, "parallel.zero_stage": 3}],
    ids=["pipeline", "sharded"],
)
def test_a_trillion_parameters_on_1024_ranks(more: dict[str, Any]) -> None:
    """On one process. How fast is not judged here: beside other work 25 s of computing took 87 s."""
    found = dry_run(parse({}).with_values(TRILLION | more))
    assert found.world_size == 1024
    assert found.legal
    assert not found.mismatches
    held = sum(row.parameters * row.ranks for row in found.stages)
    copies = 2 if not more else 1
    shape = PRESETS["1t"]
    norms = (2 * shape.layers + 1) * shape.hidden
    # What stays fp32 is on every rank.
    held -= norms * (1024 - copies) if more else 0
    # Slices are padded: 128 ranks share 8,544 rows.
    assert 1 < held / (copies * PRESETS["1t"].parameters) < 1.005
    if not more:
        assert len(found.stages) == 64
        assert [row.in_flight for row in found.stages] == list(range(64, 0, -1))


def test_an_illegal_layout_lists_every_rule_and_builds_nothing() -> None:
    found = dry_run(parse({}).with_values({"parallel.tp": 3, "parallel.pp": 5, "batch.micro_batch": 7}))
    assert not found.legal
    assert not found.stages
    for word in ("heads=4", "layers=4", "batch.micro_batch=7"):
        assert any(word in problem for problem in found.problems), word
    tree = found.as_dict()
    assert tree["legal"] is False
    assert tree["largest_bytes"] is None


def test_what_cannot_be_built_is_one_line() -> None:
    with pytest.raises(BuildError, match=r"^rank 5 could not be built: \w+: .+$"):
        build_ranks(parse({}), [5])


def test_a_rank_that_takes_too_long_is_told() -> None:
    with pytest.raises(BuildError, match="could not be built: no answer within 0 s"):
        build_ranks(parse({}), [0], patience_seconds=0.0)


@pytest.mark.parametrize("wanted", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_random_configurations_are_built_or_explained(wanted: int) -> None:
    """About one in five is legal: of 40 times as many draws, far fewer would be no accident."""
    seed = random.randrange(2**32)
    numbers, built = random.Random(seed), 0
    for place in range(40 * wanted):
        config = drawn(numbers, turned=numbers.randint(1, 12)).with_values({"model.layers": 4})
        try:
            found = dry_run(config)
        except BuildError as error:
            raise AssertionError(f"configuration {place} of seed {seed}: {config.flat()}") from error
        assert found.legal == bool(found.stages)
        assert not found.mismatches, config.flat()
        built += found.legal
        if built == wanted:
            break
    assert built == wanted, f"of the configurations of seed {seed}"
