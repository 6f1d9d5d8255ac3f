"""Following a run: what is new is added, browsers share one look, collectives are those of the last steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.run import run_folder
from engine.run.run_folder import RunStatus
from profilers.analysis.rounds import RECENT_STEPS
from tests.support.workbench.synthetic import FakeRun, RunFolder
from workbench.records import live_snapshot
from workbench.records.live_snapshot import (
    FOLLOWED,
    FOLLOWED_SECONDS,
    FRESH_SECONDS,
    TRIMMED_SECONDS,
    LiveRun,
    LiveRuns,
    last_steps,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    values = {"parallel.dp": 2, "batch.micro_batch": 4}
    return RunFolder(tmp_path, FakeRun("20260101-000000-aaaa", values, 0.1, 100, ending=None))


def test_a_second_look_sees_the_steps_in_between(folder: RunFolder) -> None:
    folder.write(3)
    run = LiveRun(folder.folder)
    assert list(run.read().steps[0]["step"]) == [0, 1, 2]
    folder.write_step(3)
    seen = run.read()
    assert list(seen.steps[1]["step"]) == [0, 1, 2, 3]
    assert list(seen.memory[0]["step"]) == [0, 1, 2, 3]
    assert len(seen.host["time_unix"]) == 4
    assert seen.running
    assert [rank.step for rank in seen.ranks] == [4, 4]
    assert not seen.problems


def test_absent_readings_are_nan(folder: RunFolder) -> None:
    folder.write(2)
    seen = LiveRun(folder.folder).read()
    assert np.isnan(seen.memory[0]["cuda_allocated_bytes"]).all()
    assert np.isnan(seen.steps[0]["loss"]).all()
    assert not np.isnan(seen.steps[1]["loss"]).any()


def test_collectives_are_those_of_the_last_steps_that_every_rank_ended(folder: RunFolder) -> None:
    folder.write(RECENT_STEPS + 30)
    run = LiveRun(folder.folder)
    seen = run.read()
    assert [(row.operation, row.axis, row.calls) for row in seen.communication] == [("all_reduce", "dp", 3.0)]
    wanted = np.mean([columns["step_seconds"][-RECENT_STEPS:] for columns in seen.steps.values()]) * 0.14
    assert seen.communication[0].seconds == pytest.approx(wanted)


def test_collectives_that_fell_out_of_the_window_are_forgotten(folder: RunFolder) -> None:
    run = LiveRun(folder.folder)
    for step in range(RECENT_STEPS * 3):
        folder.write_step(step)
        run.read()
    assert max(len(of_rank.tables) for of_rank in run._collectives.values()) == RECENT_STEPS


def test_the_window_is_made_of_steps_that_all_ranks_have() -> None:
    assert list(last_steps([np.array([1, 2, 3]), np.array([2, 3, 4])], 5)) == [2, 3]
    assert list(last_steps([np.arange(10)], 2)) == [8, 9]
    assert list(last_steps([], 2)) == []


def test_a_folder_without_anything_is_no_error(tmp_path: Path) -> None:
    seen = LiveRun(tmp_path / "nothing").read()
    assert (seen.steps, seen.communication, seen.ranks, seen.status) == ({}, [], [], RunStatus())
    assert not seen.running


def test_browsers_share_a_look_until_it_is_old(folder: RunFolder) -> None:
    now = [0.0]
    runs = LiveRuns(clock=lambda: now[0])
    first = runs.snapshot(folder.folder)
    assert runs.snapshot(folder.folder) is first
    now[0] = FRESH_SECONDS + 0.1
    assert runs.snapshot(folder.folder) is not first


def test_freed_memory_goes_back_every_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, trimmed = [0.0], list[float]()
    monkeypatch.setattr(live_snapshot.heap, "trim", lambda: trimmed.append(now[0]))
    runs = LiveRuns(clock=lambda: now[0])
    for second in range(30):
        now[0] = float(second)
        runs.snapshot(tmp_path)
    assert trimmed == [TRIMMED_SECONDS + 1, 2 * (TRIMMED_SECONDS + 1)]


def test_only_a_few_runs_are_followed_at_a_time(tmp_path: Path) -> None:
    runs = LiveRuns()
    for number in range(FOLLOWED + 3):
        runs.snapshot(tmp_path / str(number))
    assert len(runs._followed) == FOLLOWED


def test_long_runs_are_followed_as_long_as_their_records_are_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_snapshot, "FOLLOWED_BYTES", 10_000)
    for name, size in (("small", 100), ("long", 9_950), ("longer", 20_000)):
        (tmp_path / name / "records").mkdir(parents=True)
        (tmp_path / name / "records" / "rank-0.unknown").write_bytes(bytes(size))
    runs, thinned = LiveRuns(), LiveRuns(thinned=True)
    held = []
    for name in ("small", "long", "longer", "small"):
        for looked_at in (runs, thinned):
            looked_at.snapshot(tmp_path / name)
        held.append([folder.name for folder in runs._followed])
    assert held == [["small"], ["long"], ["longer"], ["small"]]
    assert len(thinned._followed) == 3


def test_a_run_that_nobody_looks_at_any_more_is_forgotten(tmp_path: Path) -> None:
    now = [0.0]
    runs = LiveRuns(clock=lambda: now[0])
    for at, name in [(0.0, "old"), (FOLLOWED_SECONDS, "kept"), (FOLLOWED_SECONDS + 1, "new")]:
        now[0] = at
        runs.snapshot(tmp_path / name)
    assert [folder.name for folder in runs._followed] == ["kept", "new"]


def test_a_run_that_has_ended_is_the_same_look_until_a_file_of_it_changes(folder: RunFolder) -> None:
    run = LiveRun(folder.folder)
    folder.write_step(0)
    assert run.read().version != run.read().version  # it goes on
    folder.end()
    ended = run.read()
    assert ended is run.read() and ended.summary is not None
    run_folder.update_status(folder.folder, note="looked at")
    again = run.read()
    assert again is not ended and again.version != ended.version
    assert again is run.read()
