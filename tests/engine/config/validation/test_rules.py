"""Any configuration at all is legal, and then it can be planned, or is refused in one line per broken rule."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.knobs.catalogue import default_of
from engine.config.layout import accumulation
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.footprint import footprints, plan_of
from engine.lifecycle import summary_of_refused
from engine.schedules.registry import SCHEDULES
from tests.support.engine import random_points, schedule_checker

SMALL = (1, 1, 1, 2, 2, 3, 4)
CHOICES: dict[str, tuple[Any, ...]] = {
    "model.layers": (12, 12, 8, 6, 2, 1),
    "model.hidden": (96, 96, 48, 64),
    "model.heads": (12, 12, 6, 4, 5),
    "model.kv_heads": (12, 6, 4, 3, 1),
    "model.ffn_hidden": (96, 96, 64, 100),
    "model.experts": (None, None, None, 2, 4, 6),
    "model.experts_per_token": (1, 2, 3),
    "model.expert_ffn_hidden": (None, 32, 33),
    "model.tied_embeddings": (False, False, False, True),
    "model.layer_groups": (None, None, None, 1, 2, 5),
    "model.capacity_factor": (None, None, 0.5, 1.25),
    "data.sequence_length": (2, 16, 24, 32, 48),
    "parallel.dp": SMALL,
    "parallel.tp": SMALL,
    "parallel.pp": SMALL,
    "parallel.cp": SMALL,
    "parallel.ep": (1, 1, 1, 2, 3, 4),
    "parallel.ep_island": (None, None, None, None, 2, 3, 4),
    "parallel.embedding": ("replicated", "replicated", "replicated", "columns"),
    "parallel.sequence_groups": (1, 1, 1, 1, 2, "planned"),
    "data.longest_document": (None, None, None, None, 16, 40),
    "data.documents": ("joined", "joined", "joined", "masked", "whole"),
    "parallel.cp_method": ("ring", "ulysses"),
    "parallel.zero_stage": (0, 0, 1, 2, 3),
    "parallel.shard_ranks": (None, None, None, 1, 2, 3),
    "parallel.tp_regather": (False, False, False, True),
    "parallel.reduce_every_micro_batch": (False, False, False, True),
    "parallel.placement": (None, None, None, [0], [1, 0], [0, 0], [3, 2, 1, 0], [0, 1, 2, 4]),
    "parallel.world_size": (None, None, None, None, 1, 4, 8),
    "batch.micro_batch": (1, 1, 2, 3),
    "batch.global_batch": (1, 8, 12, 24, 48),
    "schedule.kind": tuple(sorted(SCHEDULES)),
    "schedule.chunks": (1, 1, 2, 3),
    "schedule.stage_layers": (None, None, None, [12], [7, 5], [3, 4, 5], [1, 1]),
    "schedule.skip_share": (0.0, 0.0, 0.0, 0.0, 0.125, 0.25, 0.4),
    "schedule.skip_order": ("planned", "unplanned"),
    "compression.method": ("none", "none", "fp16", "int8", "topk", "powersgd"),
    "compression.rank": (1, 4, 4, 40, 400),
    "compression.layers": ({}, {}, {"*.wq": 0.1}, {"*.wq": 8.0}, {"*.norm": "none"}),
    "compression.weights": ("none", "none", "none", "int8"),
    "compression.experts": ("none", "none", "none", "bf16", "int8", "lsh", "lsh_int8"),
    "compression.expert_rate": (0.13, 0.2, 0.9),
    "data.ahead": (0, 1, 4),
    "overlap.prefetch": (0, 0, 0, 1, 2),
    "overlap.fused_gathers": (True, True, True, False),
    "overlap.gather_with_optimizer": (False, False, False, True),
    "overlap.tp_chunks": (1, 1, 1, 2, 3),
    "overlap.delay": (0, 0, 0, 1),
    "memory.expert_slots": (None, None, None, 1, 20),
    "memory.recompute": ("none", "full", "selective"),
    "memory.recompute_layers": (None, None, None, 1, 2, 5),
    "memory.sample_tokens": (1.0, 1.0, 1.0, 0.3),
    "memory.offload": ("none", "activations", "optimizer", "both"),
    "memory.parameters": ("fp32", "fp32", "bf16"),
    "train.slice_keep": (1.0, 1.0, 1.0, 0.5, 0.7, 0.666667),
    "train.adapt": ("none", "none", "none", "none", "lora", "losa"),
    "train.adapt_rank": (1, 8, 97),
    "train.resume": (None, "runs/one"),
    "precision": ("fp32", "bf16"),
    "compile": (False, False, False, True),
}
#: Sizes that 2, 3 and 4 divide, so that much of what is drawn is legal.
ROOMY = {
    "model.layers": 12,
    "model.hidden": 96,
    "model.heads": 12,
    "model.kv_heads": 12,
    "model.ffn_hidden": 96,
    "data.sequence_length": 48,
    "batch.global_batch": 48,
}
#: Always turned: schedules are where a legal configuration could still go wrong.
PIPELINE = ("parallel.pp", "schedule.kind", "schedule.chunks")
LONGEST_LINE = 250
#: One thing in the plural.
WRONG_PLURAL = re.compile(
    r"(?<![\w.,=/])1 (?:dp )?(actions|blocks|devices|experts|heads|hosts|layers|micro-batches|numbers|places|ranks|"
    r"registers|samples|sequences|slots|stages|steps|tasks|tokens|values)\b"
)
#: Of other knobs, those of an entry that is new among them: their default, more often than what is worth a try.
OTHERS: dict[str, tuple[Any, ...]] = {
    key: (default_of(key),) * 3 + tuple(values)
    for key, values in sorted(random_points.values_of(True).items())
    if key not in CHOICES
}
#: Keys that are turned at once; with all of them next to nothing is legal.
TURNED = (2, 4, 8, 16, len(CHOICES))


def drawn(numbers: random.Random, turned: int) -> RunConfig:
    """A configuration of which so many keys and the pipeline's are turned, whether that makes sense or not."""
    choices = CHOICES | OTHERS
    keys = {*PIPELINE, *numbers.sample(sorted(choices), turned)}
    return parse({}).with_values(ROOMY | {key: numbers.choice(choices[key]) for key in sorted(keys)})


def judge(config: RunConfig) -> bool:
    """Whether it is legal; asserts that it then has a sound plan, and an explanation otherwise."""
    try:
        found = [str(problem) for problem in problems(config)]
    except InputError as problem:
        found = [str(problem)]
    if not found:
        chosen = plan_of(config)
        found = schedule_checker.problems(chosen)
        assert not [line for line in found if not (chosen.paths and "keep their order" in line)]
        assert chosen.micro_batches == accumulation(config)
        assert all(row.total_bytes > 0 for row in footprints(config))
    assert all(line and "\n" not in line and len(line) < LONGEST_LINE for line in found), found
    assert not [line for line in found if WRONG_PLURAL.search(line)], found
    return not found


def judge_many(count: int, seed: int) -> None:
    numbers, planned = random.Random(seed), Counter[str]()
    for place in range(count):
        config = drawn(numbers, turned=numbers.choice(TURNED))
        try:
            planned[config.schedule.kind] += judge(config)
        except Exception as error:
            raise AssertionError(f"configuration {place} of seed {seed}: {config.flat()}") from error
    assert count * 0.05 < planned.total() < count * 0.95
    assert min(planned[kind] for kind in SCHEDULES) > 0, planned


def test_10_000_random_configurations_are_planned_or_explained() -> None:
    judge_many(10_000, seed=random.randrange(2**32))


def test_what_is_illegal_still_has_a_summary() -> None:
    """A session sums up what it refused."""
    numbers = random.Random(random.randrange(2**32))
    for _ in range(300):
        config = drawn(numbers, turned=numbers.choice(TURNED))
        try:
            found = list(problems(config))
        except InputError:
            continue
        if found:
            assert summary_of_refused(config, "none").step_seconds is None
    for island in (4, 5):
        sizes = {"model": {"experts": 12}, "parallel": {"dp": 6, "ep": 6, "ep_island": island}}
        summary_of_refused(parse(sizes), "none")


def test_one_of_a_list_is_no_plural() -> None:
    actions = parse({"model": {"layers": 2}, "memory": {"block_actions": ["keep"]}})
    (line,) = map(str, problems(actions))
    assert line == "memory.block_actions='1 action': the model has 2 blocks; give one action for each of them"
    (line,) = map(str, problems(parse({"model": {"layers": 2}, "schedule": {"stage_layers": [1]}})))
    assert line == "schedule.stage_layers=[1]: 1 stage with 1 layer; give 1 number with a sum of 2"


@pytest.mark.parametrize("model", [{"tied_embeddings": True}, {"layer_groups": 1}])
def test_wrong_stages_of_a_model_that_shares_parameters_are_one_line(model: dict[str, Any]) -> None:
    given = {"model": {"layers": 3, **model}, "schedule": {"stage_layers": [1, 2]}}
    assert [problem.field for problem in problems(parse(given))] == ["schedule.stage_layers"]


@pytest.mark.parametrize("gap", ["tensor", "element"])
def test_what_is_advised_for_a_gap_is_legal(gap: str) -> None:
    given = {
        "model": {"layers": 2, "tied_embeddings": True},
        "parallel": {"dp": 2, "pp": 2, "zero_stage": 1},
        "outer": {"method": "co2", "gap": gap},
    }
    (problem,) = problems(parse(given))
    assert problem.field == "outer.gap"
    assert not list(problems(parse(given).with_values({"outer.gap": problem.remedy.rpartition(" ")[2]})))


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_100_000_random_configurations_are_planned_or_explained() -> None:
    judge_many(100_000, seed=random.randrange(2**32))
