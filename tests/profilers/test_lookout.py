"""Where a training thread stands, as a second thread sees it; the clock is real, the looks are ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from profilers.clock import CpuClock
from profilers.lookout import Lookout, waits_here
from profilers.records import PHASES
from profilers.standing import EXPOSED, Standing, untold
from profilers.step_timer import StepTimer

FORWARD = PHASES.index("forward")


@waits_here
def for_others(come: threading.Lock, here: threading.Lock) -> None:
    here.release()
    come.acquire()


def compute(come: threading.Lock, here: threading.Lock) -> None:
    here.release()
    come.acquire()


@contextmanager
def standing_in(function: Callable[..., None]) -> Iterator[tuple[Lookout, StepTimer, Standing]]:
    """A training thread that stands in the forward pass of step 3, inside ``function``."""
    standing, come, here, made = untold(), threading.Lock(), threading.Lock(), list[Lookout]()
    come.acquire()
    here.acquire()
    timer = StepTimer(CpuClock(), standing)

    def train() -> None:
        made.append(Lookout(timer, standing))
        timer.begin(3)
        with timer.phase("forward"):
            function(come, here)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert here.acquire(timeout=10)
        yield made[0], timer, standing
    finally:
        come.release()
        thread.join()


def test_two_looks_at_the_same_wait_tell_it() -> None:
    with standing_in(for_others) as (lookout, _, standing):
        lookout.look()
        first = standing.read()
        assert first[:2] == (3, FORWARD)
        lookout.look()
        assert standing.read()[:2] == (3, EXPOSED)
        since = standing.read()[2]
        lookout.look()
        assert standing.read()[2] == since >= first[2]


def test_a_thread_that_computes_waits_for_nobody() -> None:
    with standing_in(compute) as (lookout, _, standing):
        lookout.look()
        lookout.look()
        assert standing.read()[:2] == (3, FORWARD)


def test_who_gets_on_moves() -> None:
    with standing_in(for_others) as (lookout, timer, standing):
        lookout.look()
        lookout.look()
        waiting = standing.read()
        timer.note((0.0, 1.0, None))
        lookout.look()
        step, code, moved = standing.read()
        assert (step, code) == (3, FORWARD)
        assert moved > waiting[2]


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_a_phase_that_begins_ends_what_was_told_before(phase: str) -> None:
    with standing_in(for_others) as (lookout, _, standing):
        lookout.look()
        lookout.look()
        standing.tell(3, PHASES.index(phase))
        assert standing.read()[:2] == (3, PHASES.index(phase))


def test_between_steps_nothing_is_told() -> None:
    standing = untold()
    lookout = Lookout(StepTimer(CpuClock(), standing), standing)
    before = list(standing.times)
    lookout.look()
    lookout.look()
    assert list(standing.times) == before
