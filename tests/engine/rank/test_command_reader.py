"""Traces of running jobs: the same steps on all ranks, not measured, and never the end of a run."""

from __future__ import annotations

import gzip
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.run import progress, run_folder
from engine.run.outcome import Ending
from engine.session import Session
from profilers.rank.orders.tasks import TraceSteps
from profilers.records.reader import RunRecords
from profilers.trace.chrome import TraceReader
from tests.engine.run.test_commands import answers, ask
from tests.engine.runs.test_faults import LONG, assert_next_run_is_good, signal_rank, when_at_step
from tests.engine.runs.test_full_disk import fill, small_disk  # noqa: F401
from tests.support.runs import execute, small
from tests.support.waiting import wait_until

THIN = {"model__layers": 1, "model__hidden": 16, "model__heads": 2, "model__kv_heads": 2}


def measured(folder: Path, rank: int) -> dict[int, bool]:
    rows = RunRecords(folder / run_folder.RECORDS).table(rank, "step")
    return dict(zip(rows.column("step").tolist(), rows.column("measured").tolist(), strict=True))


def stop_after(steps: int) -> Callable[[Path], None]:
    """Ask a run to stop once it has done so many steps more."""

    def act(folder: Path) -> None:
        now = progress.read(folder)[0].step
        when_at_step(now + steps, lambda folder: ask(folder, "9", "stop"))(folder)

    return act


def test_all_ranks_record_the_same_steps_and_none_of_them_is_measured(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=2)
        stop_after(12)(folder)

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(3, act))
    assert outcome.ending is Ending.STOPPED
    folder = session.home / summary.id
    found = answers(folder)
    first = found[0][0]["first"]
    flags = measured(folder, 0)
    spoilt = {first - 1, first, first + 1, first + 2}
    assert [step for step, good in flags.items() if not good] == sorted({0} | spoilt)
    assert summary.measured_steps == len(flags) - len(spoilt) - 1
    for rank, (row,) in enumerate(found):
        assert (row["problem"], row["first"], row["recorded"]) == (None, first, 2)
        assert measured(folder, rank) == flags
        assert row["files"] == [f"traces/step-{first}-2/rank-{rank}.json.gz"]
        with TraceReader(folder / row["files"][0]) as trace:
            assert any(event["name"] == "aten::mm" for event in trace.events())
        spans = RunRecords(folder / run_folder.RECORDS).table(rank, "span")
        assert spoilt <= set(spans.column("step").tolist())


@pytest.mark.drawn(1, of="compiled code")
def test_what_a_trace_holds_is_not_in_the_peak_and_is_given_back(session: Session) -> None:
    """Buffers of 20 steps take more than a small rank itself."""

    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=20)
        wait_until(lambda: all(answers(folder)), 60)
        stop_after(12)(folder)

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(3, act))
    assert outcome.ending is Ending.STOPPED
    folder = session.home / summary.id
    for rank, (told,) in enumerate(answers(folder)):
        assert (told["problem"], told["recorded"]) == (None, 20)
        table = RunRecords(folder / run_folder.RECORDS).table(rank, "memory")
        steps, held = table.column("step"), table.column("rss_bytes")
        peaks = table.column("peak_rss_bytes")
        before, traced, after = (
            steps < told["first"] - 1,
            (steps >= told["first"]) & (steps <= told["step"]),
            steps > told["step"],
        )
        usual = int(held[before].max())
        assert held[traced].max() > usual + 30e6
        assert held[after].max() < usual + 0.5 * (held[traced].max() - usual)
        assert peaks[traced].max() == peaks[before].max()
        assert summary.memory[rank].peak_bytes == peaks.max() < usual + 0.5 * (held[traced].max() - usual)


def test_a_killed_rank_during_a_trace_is_named_and_leaves_no_half_of_a_file(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=100)
        wait_until(lambda: progress.last_announcement(folder)[0] == 1)
        when_at_step(progress.last_announcement(folder)[1] + 3, signal_rank(1, signal.SIGKILL))(folder)

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(3, act))
    assert (outcome.ending, outcome.rank) == (Ending.CRASHED, 1)
    for path in (session.home / summary.id).glob("traces/*/rank-*.json.gz"):
        with TraceReader(path) as trace:
            assert sum(1 for _ in trace.events()) > 100
    assert_next_run_is_good(session)


def test_a_run_that_is_stopped_during_a_trace_keeps_what_was_recorded(session: Session) -> None:
    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=100)
        wait_until(lambda: progress.last_announcement(folder)[0] == 1)
        when_at_step(progress.last_announcement(folder)[1] + 3, lambda folder: ask(folder, "2", "stop"))(
            folder
        )

    outcome, summary = execute(session, small(**LONG), on_start=when_at_step(3, act))
    assert outcome.ending is Ending.STOPPED
    (first,), (second,) = answers(session.home / summary.id)
    assert (first["problem"], first["recorded"]) == (None, second["recorded"])
    assert 2 <= first["recorded"] < 100
    assert (session.home / summary.id / first["files"][0]).is_file()


def test_a_full_disk_costs_the_trace_not_the_run(small_disk: Path) -> None:  # noqa: F811
    done = threading.Event()

    def act(folder: Path) -> None:
        ask(folder, "1", "trace", steps=10)
        fill(small_disk, 96 * 1024)
        wait_until(lambda: all(answers(folder)))
        done.set()

    with Session(small_disk / "home") as session:
        config = small(**LONG | THIN | {"train__timeout_seconds": 60.0}, profile__collectives=False)
        outcome, summary = execute(session, config, done.is_set, when_at_step(3, act))
    assert outcome.ending is Ending.STOPPED
    folder = small_disk / "home" / summary.id
    for (row,) in answers(folder):
        assert "No space left" in row["problem"] or "is the disk full?" in row["problem"]
    assert not [path for path in folder.glob("traces/**/*") if path.is_file()]


class OneRank:
    """What the task needs of a rank."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.folder, self.device = 0, folder, torch.device("cpu")

    def state(self, name: str) -> None:
        assert name in progress.STATES


@pytest.mark.filterwarnings(
    "ignore:Warning. Profiler clears events"
)  # torch 2.11, of two profiles in one process
def test_a_trace_that_never_began_leaves_the_profiler_usable(tmp_path: Path) -> None:
    rank: Any = OneRank(tmp_path)
    never = TraceSteps(rank)
    never.begin()
    assert never.end(4) == {"note": "ended before the first step to record"}
    task = TraceSteps(rank)
    task.begin()
    task.record(7, 1)
    before = time.time()
    torch.ones(8).add(1)
    after = time.time()
    told = task.end(8)
    with TraceReader(tmp_path / told["files"][0]) as trace:
        (event,) = [event for event in trace.events() if event["name"] == "aten::add"]
        at = trace.base_ns / 1e9 + event["ts"] / 1e6
    assert before - 0.1 < at < after + 0.1
    assert [path.name for path in (tmp_path / "traces" / "step-7-1").iterdir()] == ["rank-0.json.gz"]


def test_what_the_profiler_did_not_write_to_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank: Any = OneRank(tmp_path)
    task = TraceSteps(rank)
    task.begin()
    task.record(0, 1)
    monkeypatch.setattr(
        type(task._profiler), "export_chrome_trace", lambda self, path: Path(path).write_text('{"half": [')
    )
    with pytest.raises(Exception, match="is the disk full"):
        task.end(1)
    assert not list((tmp_path / "traces" / "step-0-1").iterdir())


def test_files_are_compressed(tmp_path: Path) -> None:
    rank: Any = OneRank(tmp_path)
    task = TraceSteps(rank)
    task.begin()
    task.record(0, 1)
    torch.ones(8).add(1)
    path = tmp_path / task.end(1)["files"][0]
    assert gzip.decompress(path.read_bytes()).rstrip().endswith(b"}")
