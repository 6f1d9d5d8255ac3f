"""Options that no workload can have, and optimizers that a step of its own would leave out, are named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError
from engine.model.workloads.published import convolutions, driving, intermediate_labels
from engine.model.workloads.published.sparse import sparse_update
from engine.rank.workload_report import workload_facts
from tests.support.runs import small


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (convolutions.workload, {"width": 0}),
        (convolutions.workload, {"image": -1}),
        (convolutions.workload, {"classes": 0}),
        (driving.workload, {"environments": 0}),
        (driving.workload, {"rollout": 0}),
        (driving.workload, {"epochs": 0}),
        (driving.workload, {"vehicles": -1}),
        (intermediate_labels.workload, {"apart": -1}),
        (intermediate_labels.workload, {"classes": 0}),
        (intermediate_labels.workload, {"width": 2.5}),
        (sparse_update.workload, {"classes": 0}),
        (sparse_update.workload, {"image": 0}),
    ],
)
def test_a_number_that_is_too_small_is_named(factory: Any, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value} has to be a whole number"):
        factory(**options)


@pytest.mark.parametrize("workload", ["saddle", "partitioned"])
def test_an_optimizer_that_the_step_would_leave_out_is_refused(workload: str) -> None:
    config = small(model__workload=workload, train__optimizer="sgd")
    with pytest.raises(InputError, match=r"train\.optimizer='sgd'.*leave it out"):
        workload_facts(config)
    workload_facts(config.with_values({"train.optimizer": "adamw"}))
