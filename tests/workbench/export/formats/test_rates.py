"""Learning rates that fall have the same value in each step in the trainers that claim to say them exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.parallel.data.optimizer import learning_rate
from tests.support.trainers.environments import asked, require
from tests.support.trainers.results import noted
from workbench.export.targets import find_target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RISE, STEPS = 3, 12
#: Steps that the rate of a trainer's warm-up is behind.
BEHIND = {"hf": 1, "torchtitan": 0}


SCHEDULES = [("constant", 0.0), ("linear", 0.0), ("linear", 0.25), ("cosine", 0.0), ("cosine", 0.1)]


def falling(kind: str, floor: float) -> RunConfig:
    given: dict[str, Any] = {"train.steps": STEPS, "train.learning_rate_warmup": RISE,
                             "train.learning_rate_schedule": kind, "train.learning_rate_floor": floor}  # fmt: skip
    return RunConfig().with_values(given)


@pytest.mark.parametrize("name", BEHIND)
def test_each_step_has_the_same_rate(name: str) -> None:
    require(name)
    form, configs, behind = find_target(name).format, [falling(*one) for one in SCHEDULES], BEHIND[name]
    assert form is not None
    texts = json.dumps([form.text(form.make_document(config)) for config in configs])
    found = json.loads(asked(name, f"rates_{name}", given=texts).splitlines()[-1])
    for config, theirs in zip(configs, found, strict=True):
        ours = [learning_rate(config, step) for step in range(STEPS)]
        assert theirs[RISE:] == pytest.approx(ours[RISE:]), config.train
        assert theirs[behind:RISE] == pytest.approx(ours[: RISE - behind]), config.train
        assert all(rate == 0 for rate in theirs[:behind])
    noted(name, "rates", f"{len(SCHEDULES)} schedules", f"{STEPS} steps of each have our learning rate")
