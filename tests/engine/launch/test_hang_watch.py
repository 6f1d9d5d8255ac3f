"""What is noted of ranks that hang on one of several hosts, and when it is taken back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.launch import hang
from engine.launch.hang import HangWatch
from engine.run import ownership, run_folder
from engine.run.progress import PAGE_OF_HOST, Progress
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.engine.launch.test_hang import left
from tests.support.waiting import wait_until
from workbench.home import runs

PATIENCE_SECONDS = 0.05


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang, "_PATIENCE_SECONDS", 0.1)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Progress]:
    """That of a host of a run of two ranks."""
    run_folder.write_json(tmp_path / run_folder.STATUS, {"id": tmp_path.name, "state": "running"})
    made = Progress(tmp_path, 2, PAGE_OF_HOST.format("b"))
    yield made
    made.close()


def looks(folder: Path, ranks: int, times: int = 2) -> HangWatch:
    (folder / run_folder.RECORDS).mkdir(exist_ok=True)
    writer = RecordWriter(folder / run_folder.RECORDS, "host-b")
    watch = HangWatch(folder, PAGE_OF_HOST.format("b"), ranks, PATIENCE_SECONDS, writer)
    for _ in range(times):
        time.sleep(2 * PATIENCE_SECONDS)
        watch.look()
    return watch


def is_taken_back(folder: Path, page: Progress, watch: HangWatch) -> bool:
    """Both ranks move; a machine that is busy elsewhere for longer than the patience needs another look."""
    for rank in (0, 1):
        page.enter_state(rank, 5, "forward")
    watch.look()
    return noted(folder) is None


def noted(folder: Path) -> Any:
    return (run_folder.read_json(folder / run_folder.STATUS) or {}).get("hang")


def test_a_rank_that_waits_for_another_host_is_not_blamed(tmp_path: Path, page: Progress) -> None:
    page.enter_state(1, 4, "communication_exposed")
    watch = looks(tmp_path, ranks=1)
    assert noted(tmp_path) is None
    assert page.dump_requested()  # what it waits in is told where the culprit is
    page.enter_state(1, 5, "forward")
    watch.look()
    for _ in range(2):
        time.sleep(2 * PATIENCE_SECONDS)
        watch.look()
    assert noted(tmp_path)["rank"] == 1
    watch.close()


def test_what_ranks_said_of_one_hang_is_not_told_of_the_next(tmp_path: Path, page: Progress) -> None:
    left(tmp_path, 0, 7)
    left(tmp_path, 1, 0)
    page.enter_state(0, 4, "communication_exposed")
    page.enter_state(1, 4, "forward")
    once = looks(tmp_path, ranks=2, times=1)
    assert noted(tmp_path) is None
    once.close()
    watch = looks(tmp_path, ranks=2)
    first = noted(tmp_path)
    assert (first["rank"], first["phase"]) == (1, "forward")
    assert "call 7 of group dp: rank 0 waited, rank 1 did not arrive" in first["reason"]
    assert wait_until(lambda: is_taken_back(tmp_path, page, watch))
    for _ in range(2):
        time.sleep(2 * PATIENCE_SECONDS)
        watch.look()
    assert noted(tmp_path)["reason"].endswith("in step 5")
    told = RunRecords(tmp_path / run_folder.RECORDS).events("host-b")
    assert [event.kind for event in told] == ["hang", "hang_over", "hang"]
    watch.close()


def test_a_host_with_a_disk_of_its_own_gets_no_status(tmp_path: Path, page: Progress) -> None:
    (tmp_path / run_folder.STATUS).unlink()
    page.enter_state(1, 4, "forward")
    looks(tmp_path, ranks=1).close()
    assert not (tmp_path / run_folder.STATUS).exists()
    (told,) = RunRecords(tmp_path / run_folder.RECORDS).events("host-b")
    assert (told.kind, told.data["rank"]) == ("hang", 1)


def test_a_run_that_died_in_a_hang_ended_by_it(tmp_path: Path, page: Progress) -> None:
    page.enter_state(1, 4, "forward")
    looks(tmp_path, ranks=1).close()
    gone = asdict(ownership.identity(os.getpid())) | {"start_time": 1.0}
    run_folder.update_status(tmp_path, owner=gone)
    assert runs.ending(run_folder.RunStatus.from_folder(tmp_path))[:2] == ("ended", "hang")
