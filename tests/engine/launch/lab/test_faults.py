"""A link of the lab that goes down in the middle of a run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.formulas.network import Shape
from engine.launch.ending import NetworkWatch
from engine.launch.lab import lab, registry
from engine.run.outcome import Ending, RunOutcome
from engine.run.run_folder import RECORDS
from engine.session import Session
from tests.support.engine.lab import needs_lab
from tests.support.runs import execute, small

LAB: dict[str, Any] = {"islands": [2, 2], "rate_mbit": 200.0, "between_mbit": 50.0}
SMALL: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 64,
    "model__ffn_hidden": 128,
    "train__warmup": 1,
}
LONG = SMALL | {"train__steps": 100_000}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """Its labs are gone afterwards."""
    with Session(tmp_path) as warm:
        yield warm
    assert not own()


def own() -> list[lab.Lab]:
    """Labs that this process set up."""
    return [one for one in registry.list_labs() if one.pid == os.getpid()]


class Fault:
    """Asked whether the run should stop, it does something else once steps are recorded."""

    def __init__(self, strike: Callable[[lab.Lab], object]) -> None:
        self.strike = strike
        self.folder = Path()
        self.struck: float | None = None

    def started(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> bool:
        steps = self.folder / RECORDS / "rank-0.step"
        if self.struck is None and steps.exists() and steps.stat().st_size:
            self.strike(next(iter(labs_in_use())))
            self.struck = time.monotonic()
        return False


def labs_in_use() -> list[lab.Lab]:
    """Own labs, or the kept one of these tests."""
    return own() or [
        one for one in registry.list_labs() if one.shape == Shape((2, 2), (200_000,) * 2, 50_000)
    ]


def turn(one: lab.Lab, number: int, way: str) -> None:
    """Set a link up or down at its near end."""
    namespace, interface = one.links[number].near
    subprocess.run(["ip", "-n", namespace, "link", "set", interface, way], check=True)


@pytest.mark.drawn(1, of="links that go down")
@needs_lab
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        pytest.param(2, "the link of lab host 2 (ranks 4, 5) is down", marks=pytest.mark.slow),
        (4, "the link of lab island 0 (ranks 0, 1, 2, 3) is down"),
    ],
)
def test_a_link_that_goes_down_ends_the_run_and_the_next_one_runs(
    session: Session, number: int, reason: str
) -> None:
    """Two ranks a host. The lab with the fault is removed, and the next run trains in a new one."""
    broken: list[lab.Lab] = []
    fault = Fault(lambda one: (broken.append(one), turn(one, number, "down")))
    begin = time.monotonic()
    config = small(parallel__dp=8, **LONG).with_values({"lab": LAB, "train.step_timeout_seconds": 60.0})
    outcome, _ = execute(session, config, fault, fault.started)
    assert fault.struck is not None
    assert (outcome.ending, outcome.reason) == (Ending.COMM_ERROR, reason)
    assert time.monotonic() - begin < 60.0
    again, summary = execute(session, small(parallel__dp=8, **SMALL).with_values({"lab": LAB}))
    assert again.good, again
    assert len(summary.losses) == 3
    assert broken[0] not in registry.list_labs()


@needs_lab
@pytest.mark.slow
def test_a_link_that_comes_back_costs_time_only(session: Session) -> None:
    def flap(one: lab.Lab) -> None:
        turn(one, 0, "down")
        time.sleep(0.5)
        turn(one, 0, "up")

    fault = Fault(flap)
    config = small(parallel__dp=4, **SMALL | {"train__steps": 20}).with_values({"lab": LAB})
    outcome, summary = execute(session, config, fault, fault.started)
    assert fault.struck is not None
    assert outcome.good, outcome
    assert len(summary.losses) == 20


@needs_lab
@pytest.mark.slow
def test_a_kept_lab_with_a_link_down_is_not_used_and_is_made_anew(session: Session) -> None:
    kept = registry.keep(Shape((2, 2), (200_000,) * 2, 50_000))
    try:
        fault = Fault(lambda one: turn(one, 1, "down"))
        outcome, _ = execute(
            session, small(parallel__dp=4, **LONG).with_values({"lab": LAB}), fault, fault.started
        )
        assert "host 1 (rank 1) is down" in outcome.reason
        again, _ = execute(session, small(parallel__dp=4, **SMALL).with_values({"lab": LAB}))
        assert again.good
        assert not kept.complete
        assert len(own()) == 1
        assert registry.keep(kept.shape).complete
    finally:
        kept.tear_down()


@pytest.mark.drawn(1, of="links that go down")
def test_a_link_is_lost_after_two_seconds_and_explains_what_ranks_say() -> None:
    states: list[str | None] = [None]
    watch = NetworkWatch(lambda: states[-1])
    assert watch.find_failure() is None
    said = RunOutcome(Ending.COMM_ERROR, "Connection reset by peer", 3)
    assert watch.add_cause(said) == said
    states.append("the link of lab host 1 (rank 1) is down")
    until = time.monotonic() + 10.0
    began, found = time.monotonic(), None
    while found is None and time.monotonic() < until:
        found = watch.find_failure()
        time.sleep(0.05)
    assert found == RunOutcome(Ending.COMM_ERROR, states[-1] or "")
    assert time.monotonic() - began >= 2.0
    assert watch.add_cause(said).reason == states[-1]
    assert watch.add_cause(RunOutcome(Ending.OOM, "x")).reason == "x"
