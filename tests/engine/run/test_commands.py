"""Orders to a running job: numbered, begun by all ranks at the same step, answered, and never the end of a run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.run import commands, run_folder
from engine.run.commands import Order, OrderControl, OrderQueue, StopControl
from engine.run.outcome import Ending
from engine.run.progress import End, Progress
from engine.session import Session
from profilers.rank.orders.tasks import MemorySnapshot
from profilers.records.reader import RunRecords
from tests.engine.runs.test_faults import LONG, when_at_step
from tests.support.runs import execute, small


def ask(folder: Path, name: str, command: str, **arguments: Any) -> None:
    inbox = folder / run_folder.COMMANDS
    inbox.mkdir(exist_ok=True)
    run_folder.write_json(inbox / f"{name}.json", {"command": command, "arguments": arguments})


def test_orders_are_numbered_by_age_and_all_else_is_left_alone(tmp_path: Path) -> None:
    page = Progress(tmp_path, 1)
    book = OrderQueue(tmp_path, page)
    book.forward_orders()
    assert page.requested_order() == 0
    ask(tmp_path, "3", "snapshot")
    ask(tmp_path, "1", "stop")
    ask(tmp_path, "2", "snapshot", steps=0)
    (tmp_path / run_folder.COMMANDS / "0.json").write_text("{half", encoding="utf-8")
    book.forward_orders()
    book.forward_orders()
    assert page.requested_order() == 2
    assert commands.read(tmp_path, 1) == Order(1, "2", "snapshot", 0)
    assert commands.read(tmp_path, 2) == Order(2, "3", "snapshot", commands.STEPS["snapshot"])
    assert commands.read(tmp_path, 3) is None
    page.close()


def test_all_ranks_begin_an_order_at_the_step_that_rank_0_announces(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = OrderControl(page, 0), OrderControl(page, 1)
    page.request_order(2)
    assert second.due(4, busy=False) is None
    assert [first.due(step, busy=False) for step in (4, 5, 6)] == [None, None, 1]
    assert [second.due(step, busy=False) for step in (5, 6)] == [None, 1]
    assert [first.due(step, busy=True) for step in (7, 8)] == [None, None]
    assert [first.due(step, busy=False) for step in (9, 10, 11)] == [None, None, 2]
    assert [second.due(step, busy=False) for step in (9, 10, 11, 12)] == [None, None, 2, None]
    page.close()


def test_the_first_order_is_announced_from_the_first_step_on(tmp_path: Path) -> None:
    page = Progress(tmp_path, 1)
    control = OrderControl(page, 0)
    page.request_order(1)
    assert [control.due(step, busy=False) for step in (0, 1, 2)] == [None, None, 1]
    page.close()


def test_ranks_that_wait_do_the_next_order_at_the_step_where_they_stand(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = OrderControl(page, 0), OrderControl(page, 1)
    page.request_order(1)
    for step in (4, 5, 6):
        done = [control.due(step, busy=False) for control in (first, second)]
    assert done == [1, 1]
    assert first.check_hold(9, over=False) == (True, None) == second.check_hold(9, over=False)
    page.request_order(2)
    assert second.check_hold(9, over=False) == (True, None), "rank 0 speaks for all"
    assert first.check_hold(9, over=False) == (False, 2)
    assert second.check_hold(9, over=False) == (False, 2)
    (
        first.redo(5),
        second.redo(5),
    )  # the order went back to step 4: counted in all steps that were done, it is the 9th
    assert first.check_hold(6, over=False) == (True, None)
    assert page.announced_order() == (2, 9)
    assert first.check_hold(6, over=True) == (False, None)
    assert second.check_hold(6, over=False) == (False, None), "late, and let go of already"
    page.request_order(3)
    assert [first.due(step, busy=False) for step in (6, 7, 8, 9)] == [None, None, None, 3]
    page.close()


def test_a_rank_that_waits_goes_on_where_the_run_is_stopped_or_rank_0_is_gone(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = OrderControl(page, 0), OrderControl(page, 1)
    assert second.check_hold(3, over=True) == (False, None), "it has heard nothing for too long"
    page.request_stop()
    assert first.check_hold(3, over=False) == (False, None) == second.check_hold(3, over=False)
    page.close()


def test_an_order_says_how_long_ranks_wait_after_its_steps(tmp_path: Path) -> None:
    page = Progress(tmp_path, 1)
    book = OrderQueue(tmp_path, page)
    ask(tmp_path, "1", "try", steps=3, wait=1.5)
    ask(tmp_path, "2", "try", wait=1.5)
    book.forward_orders()
    assert commands.read(tmp_path, 1) == Order(1, "1", "try", 3, {}, "", 1.5)
    assert commands.read(tmp_path, 2) == Order(2, "2", "try", 0, {}, "", 0.0), "it has no steps to wait after"
    page.close()


def test_where_ranks_drift_apart_orders_and_stops_are_announced_further_ahead(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = OrderControl(page, 0), OrderControl(page, 1)
    first.widen(3)
    first.widen(1)
    page.request_order(2)
    assert first.due(4, busy=False) is None
    assert page.announced_order() == (1, 4 + 2 + 3)
    assert [second.due(step, busy=False) for step in (7, 8, 9)] == [None, None, 1], (
        "three steps before rank 0"
    )
    assert [first.due(step, busy=False) for step in range(5, 13)] == [None] * 4 + [1] + [None] * 3
    assert page.announced_order()[0] == 1, "a rank three steps behind may not have begun it"
    assert first.due(13, busy=False) is None
    assert page.announced_order() == (2, 13 + 5)
    stop = StopControl(page, 0)
    stop.widen(3)
    page.request_stop()
    assert not stop.should_stop(20)
    assert page.end() == End(25, 25)
    page.close()


def answers(folder: Path, ranks: int = 2) -> list[list[dict[str, Any]]]:
    records = RunRecords(folder / run_folder.RECORDS)
    return [
        [event.data for event in records.events(rank) if event.kind == commands.EVENT]
        for rank in range(ranks)
    ]


def test_a_snapshot_of_a_running_job(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", "snapshot", steps=2)
        ask(folder, "2", "snapshot", steps=0)
        when_at_step(25, lambda folder: ask(folder, "3", "stop"))(folder)

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(2, act))
    assert outcome.ending is Ending.STOPPED
    folder = session.home / summary.id
    first, second = answers(folder)
    assert [(row["id"], row["step"]) for row in first] == [(row["id"], row["step"]) for row in second]
    assert [row["id"] for row in first] == ["1", "2"]
    for rank, rows in enumerate((first, second)):
        for row in rows:
            assert (row["problem"], row["note"]) == (
                None, "no CUDA allocator on a CPU rank: the process's memory map instead",
            )  # fmt: skip
            found = json.loads((folder / row["files"][0]).read_text(encoding="utf-8"))
            assert (found["rank"], found["step"]) == (rank, row["step"])
            assert found["bytes"]["Rss"] > 50e6
    assert summary.peak_memory_phase in ("data", "forward", "backward", "optimizer")
    assert [row.rank for row in summary.memory] == [0, 1]


def test_a_snapshot_that_cannot_be_written_is_told_and_training_goes_on(session: Session) -> None:
    def act(folder: Path) -> None:
        (folder / run_folder.SNAPSHOTS).write_text("in the way", encoding="utf-8")
        ask(folder, "1", "snapshot")
        when_at_step(12, lambda folder: ask(folder, "2", "stop"))(folder)

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(2, act))
    assert outcome.ending is Ending.STOPPED
    for (row,) in answers(session.home / summary.id):
        assert "FileExistsError" in row["problem"] or "NotADirectoryError" in row["problem"]


class OnCuda:
    """What a task needs of a rank."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.folder, self.device = 1, folder, torch.device("cuda", 0)


def test_on_cuda_the_allocators_history_is_kept_over_the_steps_and_then_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def record(enabled: str | None = "all", **options: Any) -> None:
        calls.append((enabled, options))

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(
        torch.cuda.memory, "_snapshot", lambda device: {"segments": [], "device": str(device)}
    )
    task = MemorySnapshot(OnCuda(tmp_path))  # type: ignore[arg-type]
    task.begin()
    assert [enabled for enabled, _ in calls] == ["all"]
    told = task.end(9)
    assert told == {"files": ["snapshots/step-9/rank-1.pickle"], "note": None}
    kept = pickle.loads((tmp_path / told["files"][0]).read_bytes())
    assert kept == {"segments": [], "device": "cuda:0"}
    assert [enabled for enabled, _ in calls] == ["all", None]
