"""Where ranks stand, written and read by different processes at once."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from engine.config.run_config import parse
from engine.run import progress
from engine.run.commands import StopControl
from engine.run.outcome import Ending
from engine.run.progress import Progress, RankProgress
from engine.session import Session
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer


def test_what_a_rank_writes_is_read(tmp_path: Path) -> None:
    page = Progress(tmp_path, 3)
    page.enter_state(1, 7, "backward")
    (rank,) = progress.read(tmp_path)
    assert (rank.rank, rank.step, rank.phase) == (1, 7, "backward")
    assert 0 <= rank.age_seconds < 5
    page.close()


def test_what_a_rank_does_outside_steps_lasts_through_phases_of_its_own(tmp_path: Path) -> None:
    page = Progress(tmp_path, 1)
    page.enter_state(0, 7, "validation")
    timer = StepTimer(CpuClock(), page.status(0))
    timer.step = 7
    time.sleep(0.05)
    with timer.phase("forward"):
        (rank,) = page.ranks()
        assert (rank.phase, rank.state) == ("validation", "validation")
        assert rank.age_seconds < 0.05 <= rank.state_seconds
    with timer.phase("communication_exposed"):
        (rank,) = page.ranks()
        assert (rank.phase, rank.state) == ("communication_exposed", "validation")
    timer.begin(8)
    (rank,) = page.ranks()
    assert (rank.step, rank.phase, rank.state) == (8, "other", None)
    page.close()


def test_an_evaluation_is_seen_from_outside_for_as_long_as_it_lasts(session: Session) -> None:
    seen = list[RankProgress]()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for folder in session.home.iterdir() if session.home.is_dir() else ():
                seen.extend(progress.read(folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    outcome, _ = session.execute(
        parse(
            {
                "device": "cpu",
                "train": {"steps": 2, "warmup": 0, "validation_batches": 30},
                "batch": {"global_batch": 4, "micro_batch": 4},
            }
        ),
        {},
        lambda: False,
    )
    done.set()
    watcher.join()
    assert outcome.ending is Ending.COMPLETED
    evaluating = [rank for rank in seen if rank.state == "validation"]
    assert {rank.phase for rank in evaluating} <= {"validation", *progress.WAITING}
    longest = max(evaluating, key=lambda rank: rank.state_seconds)
    assert longest.state_seconds > 10 * median(rank.age_seconds for rank in evaluating)


def test_who_has_stood_still_for_longer_is_older_however_long_reading_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Progress(tmp_path, 2)
    for rank in (0, 1):
        page.enter_state(rank, 4, "forward")
    later = itertools.count(time.monotonic() + 1, 1000)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(later)))
    first, second = page.ranks()
    assert first.age_seconds > second.age_seconds
    page.close()


def test_every_host_has_a_page(tmp_path: Path) -> None:
    pages = [Progress(tmp_path, 3), Progress(tmp_path, 3, progress.PAGE_OF_HOST.format("b"))]
    for rank, host in ((0, 0), (2, 0), (1, 1)):
        pages[host].enter_state(rank, rank + 7, "backward")
    (tmp_path / progress.PAGE_OF_HOST.format("c")).write_bytes(b"half")
    assert [rank.rank for rank in progress.read(tmp_path)] == [0, 2]
    assert [(rank.rank, rank.step) for rank in progress.read_all(tmp_path)] == [(0, 7), (1, 8), (2, 9)]
    for page in pages:
        page.close()


def test_a_missing_or_foreign_file_is_no_progress(tmp_path: Path) -> None:
    assert progress.read(tmp_path) == []
    (tmp_path / "progress").write_bytes(b"")
    assert progress.read(tmp_path) == []
    (tmp_path / "progress").write_bytes(b"something else entirely" * 20)
    assert progress.read(tmp_path) == []


def test_a_reader_never_sees_a_rank_that_stood_still_for_ages(tmp_path: Path) -> None:
    """A slot that is cleared before it is written reads as a rank without a step since the machine booted."""
    page, reader, done = Progress(tmp_path, 1), Progress(tmp_path), threading.Event()

    def write() -> None:
        while not done.is_set():
            for code in range(7):
                status.tell(5, code)

    status = page.status(0)
    status.tell(5, 0)
    writer = threading.Thread(target=write)
    writer.start()
    ages = [rank.age_seconds for _ in range(20_000) for rank in reader.ranks()]
    done.set()
    writer.join()
    assert len(ages) == 20_000
    assert max(ages) < 5


def test_all_ranks_stop_at_the_step_that_rank_0_announces(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = StopControl(page, 0), StopControl(page, 1)
    assert not first.should_stop(4)
    page.request_stop()
    assert not second.should_stop(4)
    assert not first.should_stop(4)
    assert [second.should_stop(step) for step in (4, 5, 6)] == [False, False, True]
    assert [first.should_stop(step) for step in (5, 6)] == [False, True]
