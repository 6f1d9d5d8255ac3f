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
        assert built.activations.host == pytest.approx(formula.host, rel=0.01)
        assert built.activations.returning == pytest.approx(formula.returning, rel=0.01)
        assert built.activations.device == pytest.approx(formula.device, rel=0.1)
        assert formula.host > 0


@pytest.mark.parametrize(
    "case",
    [*CASES, {"memory__offload": "activations"}, {"memory__recompute": "full"}, {"train__slice_keep": 0.5}],
)
def test_masks_of_documents_are_kept_as_the_formula_says(case: dict[str, Any]) -> None:
    """What they add, to a thousandth: of numbers for each block, and once of a byte where one is computed again."""
    added = []
    for documents in ("joined", "masked"):
        values = {
            "model__layers": 4,
            "batch__micro_batch": 2,
            "model__kv_heads": 4,
            "data__sequence_length": 64,
        }
        config = small(**values, **case, data__documents=documents)
        (built,) = build_ranks(config, [0])[0]
        formula = stage_activations(config, parts_of(config, plan_of(config))[0])
        added.append([(kept.device, kept.host) for kept in (built.activations, formula)])
    counted, said = ([two - one for one, two in zip(*pair, strict=True)] for pair in zip(*added, strict=True))
    assert counted == pytest.approx(said, rel=1e-3) and sum(counted) > 0
