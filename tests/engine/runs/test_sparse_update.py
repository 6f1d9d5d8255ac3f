"""Data ranks that train parts of an int8 network learn as one process does, and send these parts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config.run_config import RunConfig
from engine.session import Session
from tests.support.runs import execute, small
from workbench.text.run import lines


def sparse(**more: Any) -> RunConfig:
    options = {"width": 8, "layers": 3, "classes": 6, "start": 4, "probe": 1, "budget_kib": 20.0}
    wanted = {"model__workload": "sparse_update", "model__options": options, "train__steps": 6}
    wanted |= {"train__optimizer": "sgd", "train__learning_rate": 0.02, "train__validation_batches": 2}
    return small(**wanted | {"batch__global_batch": 8, "batch__micro_batch": 4} | more)


def test_two_ranks_learn_as_one_process_and_send_what_is_trained(session: Session) -> None:
    found = [execute(session, sparse(parallel__dp=dp)) for dp in (1, 2)]
    assert all(outcome.good for outcome, _ in found), found
    one, two = (summary for _, summary in found)
    assert two.losses == pytest.approx(one.losses, abs=1e-5, rel=0)
    assert len(set(two.losses)) == 6
    assert two.validation_loss == pytest.approx(one.validation_loss, abs=1e-5)
    assert one.update == two.update and one.update is not None
    assert not one.communication
    sent = [row for row in two.communication if row.axis == "dp"]
    assert sum(row.bytes for row in sent) == one.update.sent_bytes
    weights = sum(row.trained_channels > 0 for row in one.update.layers)
    assert 0 < weights <= len(one.update.layers) == 4
    assert one.update.formula_bytes == one.update.counted_bytes
    told = dict(lines(two))["trained"]
    assert (
        f"weights of {weights} of 4 layers" in told
        and "of 20.0 KiB" in told
        and "as many were counted" in told
    )
    row = msgspec.to_builtins(two)["update"]
    assert row["budget_bytes"] == 20 * 1024 and {one["name"] for one in row["layers"]} >= {"blocks.0", "last"}
