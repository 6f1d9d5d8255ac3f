"""Masked documents over ranks: losses of one process, whatever is split."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.session import Session
from tests.support.runs import execute, small


def test_masked_documents_give_one_process_s_losses_in_every_layout_that_is_allowed(tmp_path: Path) -> None:
    config = small(data__documents="masked", train__validation_batches=2)
    layouts = {
        "tp, sequence-parallel": {"parallel.tp": 2},
        "ZeRO 3, recomputed, offloaded": {
            "parallel.dp": 2, "parallel.zero_stage": 3, "memory.recompute": "full", "memory.offload": "activations",
        },
        "tp, recomputed selectively": {"parallel.tp": 2, "memory.recompute": "selective"},
    }  # fmt: skip
    with Session(tmp_path) as session:
        alone = execute(session, config)[1]
        joined = execute(session, config.with_values({"data.documents": "joined"}))[1]
        assert joined.losses != alone.losses
        for name, values in layouts.items():
            found = execute(session, config.with_values(values))[1]
            assert found.losses == pytest.approx(alone.losses, abs=1e-5), name
            assert found.validation_loss == pytest.approx(alone.validation_loss, abs=1e-5), name
