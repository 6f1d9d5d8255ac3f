"""Where a training thread stands, as a second thread sees it; the clock is real, the looks are ours."""

from __future__ import annotations

import _thread
import gc
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from profilers.records.schema import PHASES
from profilers.steps import wait_sampler as sampler_module
from profilers.steps.clock import CpuClock
from profilers.steps.rank_status import EXPOSED, RankStatus, unread_status
from profilers.steps.timer import IssuedCall, StepTimer
from profilers.steps.wait_sampler import WaitSampler, waits_here
from tests.support.ranks import on_ranks
from tests.support.waiting import wait_until

FORWARD = PHASES.index("forward")


@waits_here
def for_others(come: threading.Lock, here: threading.Lock) -> None:
    here.release()
    come.acquire()


def compute(come: threading.Lock, here: threading.Lock) -> None:
    here.release()
    come.acquire()


@contextmanager
def status_in(function: Callable[..., None]) -> Iterator[tuple[WaitSampler, StepTimer, RankStatus]]:
    """A training thread that stands in the forward pass of step 3, inside ``function``."""
    status, come, here, made = unread_status(), threading.Lock(), threading.Lock(), list[WaitSampler]()
    come.acquire()
    here.acquire()
    timer = StepTimer(CpuClock(), status)

    def train() -> None:
        made.append(WaitSampler(timer, status))
        timer.begin(3)
        with timer.phase("forward"):
            function(come, here)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert here.acquire(timeout=10)
        yield made[0], timer, status
    finally:
        come.release()
        thread.join()


def test_two_looks_at_the_same_wait_tell_it() -> None:
    with status_in(for_others) as (sampler, _, status):
        sampler.look()
        first = status.read()
        assert first[:2] == (3, FORWARD)
        sampler.look()
        assert status.read()[:2] == (3, EXPOSED)
        since = status.read()[2]
        sampler.look()
        assert status.read()[2] == since >= first[2]


def test_a_thread_that_computes_waits_for_nobody() -> None:
    with status_in(compute) as (sampler, _, status):
        sampler.look()
        sampler.look()
        assert status.read()[:2] == (3, FORWARD)


@pytest.mark.parametrize("waits", [True, False])
def test_a_look_keeps_nothing_of_the_training_thread(waits: bool) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def hold(come: threading.Lock, here: threading.Lock) -> None:
        gradients = torch.zeros(1000)
        kept.append(weakref.ref(gradients))
        here.release()
        come.acquire()

    gc.collect()
    gc.disable()
    try:
        with status_in(waits_here(hold) if waits else hold) as (sampler, _, _):
            sampler.look()
            sampler.look()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_who_gets_on_moves() -> None:
    with status_in(for_others) as (sampler, timer, status):
        sampler.look()
        sampler.look()
        waiting = status.read()
        timer.note((0.0, 1.0, None))
        sampler.look()
        step, code, moved, *_ = status.read()
        assert (step, code) == (3, FORWARD)
        assert moved > waiting[2]


def test_who_issues_calls_moves() -> None:
    with status_in(for_others) as (sampler, timer, status):
        for _ in range(4):
            sampler.look()
            timer.issue(IssuedCall(0.0, [], None))
        assert status.read()[:2] == (3, FORWARD)


def sharded() -> Callable[[], object]:
    model = torch.nn.Linear(4, 4)
    sharded = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))

    def step() -> None:
        sharded.unshard(async_op=True)
        model(torch.ones(1, 4))
        sharded.reshard()

    return step


def functional_collective() -> Callable[[], object]:
    return lambda: functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 1  # type: ignore[arg-type]


def compiled() -> Callable[[], object]:
    return torch.compile(functional_collective())


def blocking() -> Callable[[], object]:
    return lambda: dist.all_reduce(torch.ones(4))


def seen_waiting(rank: int, make: Callable[[], Callable[[], object]], folder: Path) -> bool:
    """Rank 1 does not come to the second call before rank 0 is seen waiting in it, or 20 s have passed."""
    call, status, told = make(), unread_status(), folder / "told"
    call()
    if rank == 1:
        wait_until(told.exists, 30.0)
        call()
        return True
    timer = StepTimer(CpuClock(), status)
    found: list[bool] = []

    def watch() -> None:
        found.append(wait_until(lambda: status.read()[:2] == (3, EXPOSED), 20.0))
        told.touch()

    watcher = threading.Thread(target=watch)
    with WaitSampler(timer, status):
        timer.begin(3)
        with timer.phase("forward"):
            watcher.start()
            call()
    watcher.join()
    return found[0]


_COMPILED = pytest.param(
    compiled, marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("make", [sharded, functional_collective, _COMPILED, blocking])
def test_a_wait_in_torch_s_own_code_is_seen(make: Callable[[], Callable[[], object]], tmp_path: Path) -> None:
    assert on_ranks(2, seen_waiting, make, tmp_path) == [True, True]


@pytest.mark.parametrize(("hook", "waiting"), [(for_others, True), (compute, False)])
def test_hooks_wait_on_threads_of_autograd_s_own(
    monkeypatch: pytest.MonkeyPatch, hook: Callable[..., None], waiting: bool
) -> None:
    """Threads that Python did not start, while the training thread stands in the backward pass; and no other ones."""
    monkeypatch.setattr(sampler_module, "_backwards", {compute.__code__})
    locks = [threading.Lock() for _ in range(4)]
    for lock in locks:
        lock.acquire()
    for_thread, from_thread, for_hook, from_hook = locks
    somebody_s = threading.Thread(target=for_others, args=(for_thread, from_thread))
    somebody_s.start()
    assert from_thread.acquire(timeout=10)
    with status_in(compute) as (sampler, _, status):
        sampler.look()
        sampler.look()
        assert status.read()[:2] == (3, FORWARD)
        _thread.start_new_thread(hook, (for_hook, from_hook))
        assert from_hook.acquire(timeout=10)
        sampler.look()
        sampler.look()
        assert status.read()[:2] == (3, EXPOSED if waiting else FORWARD)
    for_hook.release()
    for_thread.release()
    somebody_s.join()


def test_the_backward_pass_is_found_in_torch() -> None:
    """A hook sees the function that the training thread stands in."""
    seen: list[bool] = []

    def hook(gradient: torch.Tensor) -> None:
        frame, found = sys._getframe().f_back, []
        while frame is not None:
            found.append(frame.f_code)
            frame = frame.f_back
        seen.append(bool(sampler_module._backwards & set(found)))

    x = torch.ones(1, requires_grad=True)
    x.register_hook(hook)
    (x * 2).sum().backward()
    assert seen == [True]


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_a_phase_that_begins_ends_what_was_told_before(phase: str) -> None:
    with status_in(for_others) as (sampler, _, status):
        sampler.look()
        sampler.look()
        status.tell(3, PHASES.index(phase))
        assert status.read()[:2] == (3, PHASES.index(phase))


def test_between_steps_nothing_is_told() -> None:
    status = unread_status()
    sampler = WaitSampler(StepTimer(CpuClock(), status), status)
    before = list(status.times)
    sampler.look()
    sampler.look()
    assert list(status.times) == before
