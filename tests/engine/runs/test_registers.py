"""Pipelines whose stages hold few messages: losses to the bit as without a bound, and never more held than said."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.session import Session
from tests.support.runs import execute, small


@pytest.mark.parametrize(
    ("kind", "chunks", "registers"),
    [("gpipe", 1, 1), ("1f1b", 1, 2), ("zb_v", 2, 1), ("breadth_first", 2, 4)],
)
def test_a_bound_changes_no_number_and_holds(kind: str, chunks: int, registers: int, tmp_path: Path) -> None:
    config = small(parallel__pp=2, schedule__kind=kind, schedule__chunks=chunks, model__layers=4)
    config = config.with_values({"train.validation_batches": 2})
    with Session(tmp_path) as session:
        free, bound = (
            execute(session, config.with_values({"schedule.registers": some}))[1]
            for some in (None, registers)
        )
    assert bound.losses == free.losses and bound.validation_loss == free.validation_loss
    row, plain = bound.pipeline, free.pipeline
    assert row is not None and plain is not None
    assert row.registers == registers and row.most_held is not None and row.register_seconds is not None
    assert 1 <= row.most_held <= registers and plain.registers is plain.most_held is None
