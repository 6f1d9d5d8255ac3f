"""When a run that nobody turns is called slower or faster."""

from __future__ import annotations

import random

import pytest

from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.live.drift import STEPS, drifted
from tuning.spec.study_file import parse


def test_too_few_steps_say_nothing() -> None:
    assert drifted([1.0] * STEPS + [9.0] * (STEPS - 1), 0.3) == ""


def test_a_lasting_change_is_told_with_its_size() -> None:
    assert drifted([1.0] * 50 + [1.5] * STEPS, 0.3) == "a step takes 50 % longer than when the search ended"
    assert drifted([1.0] * 50 + [0.5] * STEPS, 0.3) == "a step takes 50 % less than when the search ended"


def test_a_hiccup_is_no_drift() -> None:
    assert drifted([1.0] * 70 + [30.0] + [1.0] * 10, 0.3) == ""
    assert drifted([1.0] * 80 + [2.0] * (STEPS // 2), 0.3) == ""


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_drift(seed: int) -> None:
    draw = random.Random(seed)
    seconds = [draw.lognormvariate(0.0, 0.15) for _ in range(2_000)]
    assert not any(drifted(seconds[:end], 0.3) for end in range(2 * STEPS, 2_000, 7))


def test_the_search_that_follows_begins_with_what_leads(leader: int = 4) -> None:
    file = live_study(name="job")
    first = file.looking_again({"parallel.dp": 2, "batch.micro_batch": leader, "memory.recompute": "full"})
    assert (first.name, first.inherit, first.following) == ("job-look-1", ["job"], "job-look-2")
    baseline = first.search_space.baseline[0]
    assert baseline["batch.micro_batch"] == leader
    assert first.config.memory.recompute == "full"
    assert first.fingerprint() != file.fingerprint()
    second = first.looking_again({"batch.micro_batch": 2})
    assert (second.name, second.inherit) == ("job-look-2", ["job-look-1"])
    assert parse(second._given()).name == second.name
