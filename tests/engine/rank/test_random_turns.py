"""Many random turns of exact knobs in one run: it learns as a run that nobody turned, step by step."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.knobs.catalogue import facts_of, live_parts
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from engine.schedules.registry import SCHEDULES
from engine.session import Session
from tests.engine.rank.test_reconfigure import run
from tests.support import drawn
from tests.support.runs import small

LAYOUTS: dict[str, dict[str, Any]] = {
    "replicated": {"parallel__dp": 2},
    "sliced": {"parallel__dp": 2, "parallel__zero_stage": 1},
    "sharded": {"parallel__dp": 2, "parallel__zero_stage": 3},
    "pipeline": {"parallel__pp": 2},
    "pipeline of chunks": {"parallel__pp": 2, "schedule__kind": "interleaved", "schedule__chunks": 2},
    "tensor parallel": {"parallel__tp": 2},
}
#: Values of the knobs that turn while a run goes and change nothing of what is learned.
VALUES: dict[str, list[Any]] = {
    "batch.micro_batch": [1, 2, 4, 8],
    "memory.recompute": ["none", "selective", "full"],
    "memory.recompute_layers": [None, 1, 2],
    "memory.offload": ["none", "activations"],
    "parallel.zero_stage": [2, 3],
    "parallel.reduce_every_micro_batch": [False, True],
    "overlap.gather_with_optimizer": [False, True],
    "overlap.bucket_mb": [0.02, 0.3, 25.0],
    "overlap.prefetch": [0, 1, 2],
    "overlap.fused_gathers": [True, False],
    "overlap.tp_chunks": [1, 2, 4],
    "memory.block_actions": [None, ["keep", "full", "selective", "keep"]],
    "environment.OMP_NUM_THREADS": [None, 1, 2],
    "schedule.registers": [None, 2, 4],
    "schedule.kind": [name for name, kind in SCHEDULES.items() if not kind.skips],
}
#: Knobs that act only with what is not exact.
INEXACT = {"compression.layers", "schedule.skip_order"}
TURNS, MANY = 6, 50
#: So long rounding stays below 1e-5.
EXACT_STEPS = 40


def turns(config: RunConfig, count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Legal changes one after the other, each of one or two keys, and each of something."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        keys = draw.sample(sorted(VALUES), draw.choice([1, 2]))
        values = {key: draw.choice(VALUES[key]) for key in keys}
        try:
            after = live_changes.change_config(config, values)
        except InputError:
            continue
        if live_changes.changes(config, after):
            config, found = after, [*found, values]
    return found


def check(session: Session, name: str, count: int) -> None:
    steps = 4 * count + 10
    base = {"batch__global_batch": 8, "batch__micro_batch": 2, "model__layers": 4, "train__steps": steps,
            "train__warmup": 2, "train__validation_batches": 2}  # fmt: skip
    config = small(**base | LAYOUTS[name])
    wanted = turns(config, count, random.Random(f"{drawn.SEED} {name}"))
    plain, turned = run(session, config), run(session, config, *wanted)
    assert turned.losses[:EXACT_STEPS] == pytest.approx(plain.losses[:EXACT_STEPS], abs=1e-5), wanted
    # Sums in another order round another way, and training carries that on: two fixed settings part as much.
    assert turned.losses == pytest.approx(plain.losses, abs=2e-4), wanted
    assert turned.gradient_norms == pytest.approx(plain.gradient_norms, rel=1e-2), wanted
    assert turned.validation_loss == pytest.approx(plain.validation_loss, abs=2e-4), wanted
    by_step: dict[int, dict[str, Any]] = {}
    for row in turned.changes:
        by_step.setdefault(row.step, {})[row.key] = row.new
    assert len(by_step) == count, "every turn was made"


def test_all_knobs_that_turn_and_change_nothing_of_what_is_learned_are_turned() -> None:
    """An entry that is new asks for its values here."""
    exact = {key for key in live_parts() if not (facts_of(key).decides_loss or facts_of(key).alters_learning)}
    assert set(VALUES) == exact - INEXACT


@pytest.mark.timeout(240)
@pytest.mark.drawn(2, of="layouts under random turns")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_few_random_turns(session: Session, name: str) -> None:
    check(session, name, TURNS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAYOUTS)
def test_fifty_random_turns(session: Session, name: str) -> None:
    check(session, name, MANY)
