"""Settings that only the decoder can follow are refused for other workloads, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import LayoutError
from engine.config.validation import rules
from tests.support.runs import small

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"parallel__ep": 2, "parallel__dp": 2}, "parallel.ep", "experts are split"),
    ({"memory__recompute": "selective"}, "memory.recompute", "set it to none or full"),
    ({"memory__parameters": "bf16", "precision": "bf16"}, "memory.parameters", "autocast"),
    ({"schedule__kind": "zb_h1", "parallel__pp": 2}, "schedule.kind", "splits the backward"),
    ({"model__layers": 2}, "model.layers", "give its factory model.options"),
    ({"model__preset": "7b"}, "model.preset", "is the decoder's"),
]


@pytest.mark.parametrize(("values", "field", "remedy"), REFUSED, ids=[field for _, field, _ in REFUSED])
def test_what_only_the_decoder_can(values: dict[str, Any], field: str, remedy: str) -> None:
    found = {one.field: one.remedy for one in rules.problems(small(model__workload="vision", **values))}
    assert remedy in found[field]


@pytest.mark.parametrize("spec", ["visions", "package.module", ":factory", "package:"])
def test_no_workload(spec: str) -> None:
    with pytest.raises(LayoutError, match="or one of decoder, vision"):
        rules.check(small(model__workload=spec))


def test_what_it_can_passes() -> None:
    values = {"parallel__dp": 2, "parallel__pp": 2, "parallel__zero_stage": 3, "memory__recompute": "full"}
    assert not list(rules.problems(small(model__workload="vision", **values)))
