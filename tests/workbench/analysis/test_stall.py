"""A run in which no step ends any more: when that is said, of which rank, and when it is not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.run import progress, run_folder
from engine.run.progress import PAGE_OF_HOST, Progress
from tests.support.samples import step_sample
from tests.support.waiting import wait_until
from tests.support.workbench.live_run import going_on
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.conftest import Run
from tests.workbench.pages.test_pages import texts, visit
from workbench.analysis import stall
from workbench.analysis.stall import Stall, find_stall, idle_seconds, sentence, stall_of
from workbench.home import runs
from workbench.records.live_snapshot import LiveRun

RUN, USUAL = "20260101-000000-aaaa", 0.2
EXPOSED = "communication_exposed"


def standing(
    home: Path,
    quiet: float = 12.0,
    phases: Sequence[str] = (EXPOSED, "backward", EXPOSED),
    seconds: Sequence[float] = (USUAL,) * 6,
) -> RunFolder:
    """A run whose last step ended ``quiet`` seconds ago; each rank stands in its phase of the next one."""
    began = time.time() - quiet - sum(seconds)
    values = {"parallel.dp": len(phases), "batch.global_batch": len(phases), "batch.micro_batch": 1}
    folder = RunFolder(home, FakeRun(RUN, values, USUAL, 600, ending=None, started_unix=began))
    for rank, writer in enumerate(folder.ranks):
        for step, took in enumerate(seconds):
            writer.write(step_sample(step, start_unix=began + sum(seconds[:step]), forward=took))
        folder.progress.enter_state(rank, len(seconds), phases[rank])
    return folder


def told(folder: RunFolder) -> str:
    """The same of a page's look and of the folder."""
    found, read = find_stall(LiveRun(folder.folder, thinned=True).read()), stall_of(runs.load(folder.folder))
    assert (found is None) == (read is None)
    if found is None or read is None:
        return ""
    assert (found.held_up_by, found.usual_seconds) == (read.held_up_by, read.usual_seconds)
    return sentence(found)


def test_the_rank_that_waits_for_nobody_holds_up_the_others(home: Path) -> None:
    said = told(standing(home))
    assert said == (
        "No step has ended for 12 s (usual: 200.0 ms): rank 1 is in its backward pass; the others are waiting for "
        "communication. Ranks that do not move for 60 s end the run as hung."
    )


@pytest.mark.parametrize(
    ("quiet", "seconds"),
    [
        (4.0, (USUAL,) * 6),
        (12.0, (2.0,) * 6),
        (12.0, (USUAL, USUAL, 8.0, USUAL, USUAL, USUAL)),
        (12.0, (USUAL,) * 2),
    ],
)
def test_what_is_no_longer_than_usual_is_not_said(home: Path, quiet: float, seconds: Sequence[float]) -> None:
    """Under 5 s, under 10 times the median, under twice the longest, and before three steps have ended."""
    assert told(standing(home, quiet, seconds=seconds)) == ""


@pytest.mark.parametrize("state", ["validation", "checkpoint", "building", "tracing", "finished"])
def test_what_may_take_long_is_no_stall(home: Path, state: str) -> None:
    assert told(standing(home, phases=(state, EXPOSED))) == ""


def test_the_time_counts_from_what_a_rank_noted_last(home: Path) -> None:
    """An evaluation that has just ended was no step."""
    folder = standing(home)
    folder.ranks[0].event("validation", step=6, loss=2.0, batches=1, ranks=1)
    assert told(folder) == ""


@pytest.mark.parametrize(("first", "is_said"), [(6, False), (5, True)])
def test_the_first_step_with_another_value_may_take_long(
    home: Path, monkeypatch: pytest.MonkeyPatch, first: int, is_said: bool
) -> None:
    """Announced a minute ago: kernels may be compiled anew."""
    folder = standing(home)
    earlier = time.time() - 60
    monkeypatch.setattr("profilers.records.writer.time", SimpleNamespace(time=lambda: earlier))
    folder.ranks[0].event("changed", step=first, key="batch.micro_batch", old=1, new=2, by="page")
    assert bool(told(folder)) is is_said


def test_of_a_hang_and_of_an_end_the_status_says_more(home: Path) -> None:
    folder = standing(home)
    assert told(folder)
    run_folder.update_status(folder.folder, hang={"ending": "hang", "reason": "rank 1 made no progress"})
    assert told(folder) == ""
    run_folder.update_status(folder.folder, hang=None, state="ended", outcome={"ending": "completed"})
    assert told(folder) == ""


@pytest.mark.parametrize(
    ("phases", "steps", "who"),
    [
        (
            (EXPOSED, EXPOSED),
            (6, 6),
            "all ranks are waiting for communication, and which one holds up the others",
        ),
        (
            (EXPOSED, EXPOSED),
            (6, 5),
            "rank 1 is waiting for communication; rank 0 is waiting for communication",
        ),
        (
            ("bubble", "data"),
            (6, 6),
            "rank 1 is waiting for its next batch; rank 0 is waiting for a message of",
        ),
        (("forward",) * 3, (6, 6, 6), "ranks 0, 1, 2 are in their forward pass."),
        (("forward", EXPOSED, EXPOSED), (9, 6, 6), "rank 0 is in its forward pass; the others are waiting"),
        (
            ("other", "bubble", EXPOSED),
            (6,) * 3,
            "waiting for a message of the pipeline or waiting for communication",
        ),
    ],
)
def test_who_is_named(home: Path, phases: Sequence[str], steps: Sequence[int], who: str) -> None:
    folder = standing(home, phases=phases)
    for rank, step in enumerate(steps):
        folder.progress.enter_state(rank, step, phases[rank])
    assert who in told(folder)


def test_a_rank_of_another_host_has_neither_an_age_nor_a_process_here(home: Path) -> None:
    folder = standing(home, phases=(EXPOSED, EXPOSED))
    other = Progress(folder.folder, 2, PAGE_OF_HOST.format("second"))
    other.enter_state(1, 6, "backward")
    page = folder.folder / run_folder.PROGRESS
    page.write_bytes(page.read_bytes()[:-64] + bytes(64))
    look = LiveRun(folder.folder).read()
    found = find_stall(look)
    assert found is not None and found.held_up_by == (1,)
    assert [place.idle_seconds is None for place in found.ranks] == [False, True]
    first, second = idle_seconds(look)
    assert first is not None and first >= 0 and second is None
    other.close()


def test_nothing_is_said_of_clocks_of_a_run_on_another_host(home: Path) -> None:
    folder = standing(home)
    owner = (run_folder.read_json(folder.folder / run_folder.STATUS) or {})["owner"]
    run_folder.update_status(folder.folder, owner=owner | {"host": "elsewhere"})
    assert idle_seconds(LiveRun(folder.folder).read()) == [None] * 3
    found = stall_of(runs.load(folder.folder))
    assert found is not None and not any(place.stopped for place in found.ranks)


@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="stalls")
def test_a_stopped_rank_is_named_while_it_is_stopped(
    home: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run of two ranks: on the page Live, by ``show``, and no more once it goes on."""
    monkeypatch.setattr(stall, "LEAST_SECONDS", 1.0)
    with going_on(home) as folder:
        pid = progress.read(folder)[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert wait_until(lambda: _held_up(folder) == (1,))
            app = visit("live", run=folder.name)
            assert not app.exception
            assert sum("No step has ended" in one.value for one in app.warning) == 1
            assert "rank 1 is stopped (SIGSTOP or a debugger), " in texts(app)
            assert "Said once no step has ended for longer than" in texts(app)
            ranks = next(one.value for one in app.dataframe if "idle, s" in one.value)
            assert ranks["idle, s"].min() > 0
            document = command("show", folder.name, "--json").document["stall"]
            assert (document["held_up_by"], document["ranks"][1]["stopped"]) == ([1], True)
            assert document["words"].startswith("No step has ended for ")
            assert "stalled      No step has ended for" in command("show", folder.name).out
        finally:
            os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: _held_up(folder) is None)
        # A page may show a look that is a second old.
        assert wait_until(lambda: "No step has ended" not in texts(visit("live", run=folder.name)))
    assert command("show", folder.name, "--json").document["stall"] is None


def _held_up(folder: Path) -> tuple[int, ...] | None:
    found: Stall | None = stall_of(runs.load(folder))
    return None if found is None else found.held_up_by
