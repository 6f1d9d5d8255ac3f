"""What offloading leaves on the device and takes to the host: the formula beside a rank that was built."""

from __future__ import annotations

from typing import Any

import pytest

from engine.dry_run.pool import build_ranks
from engine.footprint.activations import stage_activations
from engine.footprint.footprint import parts_of, plan_of
from tests.support.runs import small

CASES: list[dict[str, Any]] = [
    {},
    {"memory__recompute": "full", "memory__recompute_layers": 3},
    {"memory__recompute": "selective", "precision": "bf16"},
]


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_what_a_built_rank_keeps(case: dict[str, Any], pp: int) -> None:
    config = small(**case, parallel__pp=pp, batch__micro_batch=2, model__layers=4, memory__offload="both")
    chosen = plan_of(config)
    parts = parts_of(config, chosen)
    assert [part.turns_at_once for part in parts] == [stage == pp - 1 for stage in range(pp)]
    for rank in range(pp):
        (built,) = build_ranks(config, [rank])[0]
        formula = stage_activations(config, parts[built.stage])
        assert built.kept.host == pytest.approx(formula.host, rel=0.01)
        assert built.kept.returning == pytest.approx(formula.returning, rel=0.01)
        assert built.kept.device == pytest.approx(formula.device, rel=0.1)
        assert formula.host > 0
