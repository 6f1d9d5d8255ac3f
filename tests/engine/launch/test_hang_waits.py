"""Hangs in which every rank waits, as on GPUs, where all hosts stand waiting for their device."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import engine
from engine.comm import host_values
from engine.comm.context import Groups
from engine.launch import hang
from engine.launch.ending import find_culprit, hanging_rank
from engine.rank import flight
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.progress import WAITING, Progress
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from profilers.steps.wait_sampler import WaitSampler, is_waiting, waits_here
from tests.support.ranks import on_ranks
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 1.5


class _Device:
    """Its queue holds an all-reduce that this rank called, if it did; a host that asks for a number waits for that."""

    def __init__(self, work: dist.Work | None, over: Path) -> None:
        self._work, self._over = work, over

    @waits_here
    def number(self) -> None:
        until = time.monotonic() + 40.0
        while not os.access(self._over, os.F_OK) and time.monotonic() < until:
            time.sleep(0.1)


def stand(rank: int, folder: Path, skips: int) -> None:
    """All ranks wait for their device in step 4; the one that ``skips`` called no second all-reduce."""
    page = Progress(folder)
    status = page.status(rank)
    timer = StepTimer(CpuClock(), status)
    dist.all_reduce(torch.ones(3))
    made = Groups(**dict.fromkeys(Groups.__dataclass_fields__) | {"axes": {}})  # type: ignore[arg-type]
    with flight.answer_dump_requests(page, rank, folder, made), WaitSampler(timer, status):
        timer.begin(4)
        with timer.phase("optimizer"):
            work = None if rank == skips else dist.all_reduce(torch.ones(5), async_op=True)
            _Device(work, folder / "over").number()
    if rank == skips:
        work = dist.all_reduce(torch.ones(5), async_op=True)
    assert work is not None
    work.wait()


def seen(folder: Path, page: Progress) -> RunOutcome:
    """What a launcher says of them, once all are seen to wait."""
    try:
        assert wait_until(
            lambda: (
                len(page.ranks()) == 2
                and all(one.phase in WAITING and one.age_seconds > PATIENCE_SECONDS for one in page.ranks())
            ),
            30.0,
        ), page.ranks()
        ranks = page.ranks()
        suspect = hanging_rank(ranks, PATIENCE_SECONDS)
        assert suspect is not None
        found = hang.explain(page, folder)
        assert found is not None
        return hang.outcome_of(*find_culprit(suspect, ranks, found.held_up_by), found)
    finally:
        (folder / "over").touch()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("skips", [0, 1])
def test_of_ranks_that_all_wait_the_one_that_skipped_a_collective_is_named(
    tmp_path: Path, skips: int
) -> None:
    page, said = Progress(tmp_path, 2), list[RunOutcome]()
    launcher = threading.Thread(target=lambda: said.append(seen(tmp_path, page)))
    launcher.start()
    on_ranks(2, stand, tmp_path, skips)
    launcher.join()
    (outcome,) = said
    assert (outcome.ending, outcome.rank, outcome.phase) == (Ending.HANG, skips, "communication_exposed")
    assert f"rank {1 - skips} waited, rank {skips} did not arrive" in outcome.reason
    assert len([json.loads(path.read_text()) for path in (tmp_path / run_folder.FLIGHT).iterdir()]) == 2
    page.close()


def test_who_asks_the_device_for_a_number_waits() -> None:
    """The frame that a second thread sees is the marked one: nothing in Python runs below it."""
    seen: list[bool] = []

    class Slow:
        def look(self) -> Slow:
            seen.append(is_waiting(sys._getframe(1)))
            return self

        item = tolist = cpu = synchronize = look

        def __float__(self) -> float:
            return 0.0

    asked: Any = Slow()
    for ask in (host_values.number, host_values.numbers, host_values.to_host, host_values.wait_for_stream):
        ask(asked)
    assert seen == [True] * 4


def test_nobody_is_blamed_without_a_reason() -> None:
    page_says = [hang.RankProgress(rank, 1, 4, "communication_exposed", 9.0) for rank in (0, 1)]
    outcome = hang.outcome_of(*find_culprit(page_says[0], page_says, ()), None)
    assert outcome.rank is None
    assert outcome.reason == (
        "rank 0 made no progress for 9 s in step 4; it waited, and which rank held the others up is not known"
    )


#: Where steps are made. What compresses measures its own time, and plans between steps.
STEP_PATH = ("parallel", "model")


def test_steps_ask_the_device_for_numbers_where_that_is_seen() -> None:
    """``engine.comm.host_values`` is marked as a wait; an ``.item()`` elsewhere would pass for computing."""
    here = Path(engine.__file__).parent
    files = [here / "comm" / "channel.py"]
    files += [path for part in STEP_PATH for path in (here / part).rglob("*.py")]
    asked = [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("item", "tolist", "cpu", "synchronize")
    ]
    assert len(asked) == 1, asked
    assert asked[0].startswith("optimizer.py"), "of shares, which are on the host always"
