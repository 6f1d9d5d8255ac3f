"""Foreign jobs on two gloo ranks: what is recorded against their own stop-watches and torch.profiler."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from profilers.model.verdict import find_keys
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.records.table import Table
from tests.support.job import command, trainer
from workbench.home import runs
from workbench.home.store import Store
from workbench.metrics.follow import FollowedRun
from workbench.records import archive
from workbench.records.live_snapshot import LiveRun

pytestmark = pytest.mark.drawn(4, of="records of foreign jobs")

_STEPS = 16


class Job(NamedTuple):
    """A job that was recorded, and what it noted itself."""

    home: Path
    folder: Path
    records: RunRecords
    notes: dict[int, dict[str, Any]]
    printed: str
    said: str


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    home = tmp_path_factory.mktemp(request.param)
    out = tmp_path_factory.mktemp("notes")
    done = command.run(home, *command.TORCHRUN, str(command.TRAINER), request.param, str(out), str(_STEPS))
    assert done.returncode == 0, done.stderr
    notes = {rank: json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)}
    folder = command.only_run(home)
    return Job(home, folder, archive.records(folder / "records"), notes, done.stdout, done.stderr)


def _steps(job: Job, rank: int) -> Table:
    return job.records.table(rank, "step")


def test_its_output_passes_through(job: Job) -> None:
    assert job.printed == "trained\n"
    assert "completed" in job.said


def test_every_step_but_the_first_is_there(job: Job) -> None:
    for rank in job.notes:
        assert _steps(job, rank).column("step").tolist() == list(range(1, _STEPS))
        assert _steps(job, rank).column("measured").tolist() == [False] + [True] * (_STEPS - 2)


def test_steps_take_what_the_job_s_stop_watch_says(job: Job) -> None:
    """Each end is marked inside the call of ``optimizer.step()``, so within what is noted before and after it."""
    for rank, noted in job.notes.items():
        before, after = np.array([note["optimizer"] for note in noted["notes"]]).T
        table = _steps(job, rank)
        wall = table.column("step_seconds").filled(0.0) + table.column("between_seconds").filled(0.0)
        assert (wall[1:] >= before[2:] - after[1:-1]).all()
        assert (wall[1:] <= after[2:] - before[1:-1]).all()


def test_phases_lie_within_what_the_job_notes(job: Job) -> None:
    for rank, noted in job.notes.items():
        table, notes = _steps(job, rank), noted["notes"][1:]
        seconds = {name: table.column(f"{name}_seconds").filled(np.nan) for name in PHASES}
        assert np.allclose(sum(seconds.values()), table.column("step_seconds"))
        around = {
            name: np.array([note[name][-1] - note[name][0] for note in notes])
            for name in ("forward", "backward")
        }
        inside = np.array([note["forward"][2] - note["forward"][1] for note in notes])
        waited = seconds["communication_exposed"]
        assert (seconds["forward"] <= around["forward"]).all()
        assert (seconds["forward"] + waited >= inside).all()
        assert (seconds["backward"] <= around["backward"]).all()
        assert (seconds["forward"] + seconds["backward"] + waited >= inside).all()
        # Two records a batch, each of which sleeps.
        assert (seconds["data"] >= 2 * trainer.READING_SECONDS).all()


def test_bytes_are_those_that_the_profiler_saw(job: Job) -> None:
    for rank, noted in job.notes.items():
        calls = job.records.table(rank, "comm")
        chosen = np.isin(calls.column("step"), range(trainer.PROFILED[0], trainer.PROFILED[1] + 1))
        names = np.array(calls.column("operation").tolist())[chosen]
        sizes = calls.column("bytes").filled(0)[chosen].tolist()
        ours = Counter(zip(names.tolist(), sizes, strict=True))
        assert ours == Counter(_of_profiler(noted["events"]))
        assert ours


def _of_profiler(events: list[Any]) -> list[tuple[str, int]]:
    """Of float32: DDP's calls by gloo's events, which tell what a list of tensors holds; FSDP2's by the operators."""
    found = [("all_gather", 4 * shapes[0][0]) for name, shapes in events if name == "c10d::_allgather_base_"]
    found += [
        ("reduce_scatter", 4 * shapes[1][0])
        for name, shapes in events
        if name == "c10d::_reduce_scatter_base_"
    ]
    if not found:
        found = [("all_reduce", 4 * shapes[0][0]) for name, shapes in events if name == "gloo:all_reduce"]
    return found


def test_exposed_time_of_collectives_is_no_longer_than_the_phase(job: Job) -> None:
    for rank in job.notes:
        calls, table = job.records.table(rank, "comm"), _steps(job, rank)
        assert (
            calls.column("exposed_seconds").filled(0.0) <= calls.column("seconds").filled(0.0) + 1e-9
        ).all()
        assert table.column("communication_exposed_seconds").sum() > 0


def test_a_group_of_all_ranks_is_the_world(job: Job) -> None:
    """A mesh of one dimension has the default group."""
    assert set(job.records.table(0, "comm").column("axis").tolist()) == {"world"}


def test_what_nobody_can_know_is_absent_with_its_reason(job: Job) -> None:
    view = runs.load(job.folder)
    document = runs.document(view)
    assert view.job is not None
    assert view.job.command[-1] == str(_STEPS)
    assert document["job"] == asdict(view.job)
    assert document["config"] is None
    assert document["layout"] == {}
    assert view.summary is not None
    assert view.summary.tokens_per_second is None
    assert "does not tell the tokens" in (view.summary.tokens_per_second_reason or "")
    assert view.summary.parameters is None
    assert view.summary.mfu is None
    assert view.summary.mfu_reason == "the model's FLOPs per step are not known"
    assert view.summary.findings
    assert all(one.advice and not one.knobs and not find_keys(one.advice) for one in view.summary.findings)


def test_readers_find_it(job: Job) -> None:
    row = Store(job.home).runs()[0]
    assert (row.outcome, row.world_size, row.backend, row.purpose) == ("completed", 2, "gloo", "job")
    assert row.step_seconds is not None
    snapshot = LiveRun(job.folder).read()
    assert len(snapshot.steps[1]["step"]) == _STEPS - 1
    assert [rank.phase for rank in snapshot.ranks] == ["finished", "finished"]
    assert {row.operation for row in snapshot.communication}
    followed = FollowedRun(job.folder)
    followed.refresh()
    assert sum(followed.steps["0"].buckets) == _STEPS - 1
    assert not followed.problems


def test_the_machine_and_the_processes_were_sampled(job: Job) -> None:
    assert len(job.records.table("launcher", "host"))
    assert set(job.records.table("launcher", "process").column("rank").tolist()) == {0, 1}
