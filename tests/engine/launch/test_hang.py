"""What a run that hangs says: which collective ranks waited in, and who did not come."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from engine.launch import hang, supervisor
from engine.run import progress, run_folder
from engine.run.outcome import Ending
from engine.run.progress import Progress
from engine.session import Session
from profilers.rank import last_calls
from tests.engine.runs.test_faults import LONG, signal_rank, when_at_step
from tests.support.profilers.flight import nccl_bytes, nccl_entry
from tests.support.runs import execute, small
from tests.support.waiting import wait_until


def left(folder: Path, rank: int, calls: int, **known: object) -> None:
    """What an NCCL rank writes when asked: its last call is under way."""
    entries = [nccl_entry(number + 1) for number in range(calls - 1)]
    dump = (
        nccl_bytes([*entries, nccl_entry(calls, state="started")], {"abc": [0, 1]})
        if calls
        else nccl_bytes([])
    )
    told = {"since_unix": 0.0, "axes": {"0": "dp"}, "members": {"0": [0, 1]}, "dumps": [dump.decode()]}
    (folder / run_folder.FLIGHT).mkdir(exist_ok=True)
    (folder / run_folder.FLIGHT / f"rank-{rank}.json").write_text(json.dumps(told | known))


@pytest.mark.drawn(2, of="hangs")
def test_the_outcome_of_a_hung_run_names_the_collective(session: Session) -> None:
    """Real gloo ranks, of which one is stopped: its peer still tells what it waits in."""
    stop = when_at_step(3, signal_rank(1, signal.SIGSTOP))
    outcome, summary = execute(session, small(**LONG | {"train__step_timeout_seconds": 2.0}), on_start=stop)
    assert (outcome.ending, outcome.rank) == (Ending.HANG, 1)
    assert "rank 0 waited, rank 1 did not arrive; rank 1 left no record of its calls" in outcome.reason
    written = sorted((session.home / summary.id / run_folder.FLIGHT).iterdir())
    assert [path.name for path in written] == ["rank-0.json"]


@pytest.mark.drawn(2, of="hangs")
def test_a_stopped_rank_is_named_without_the_kernel_s_word(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rank computes for ever: of gathered parameters' ranks, the one that waits is seen to wait."""
    monkeypatch.setattr(supervisor, "stopped_processes", lambda *_: frozenset[int]())
    seen: list[str] = []

    def stop_and_see(folder: Path) -> None:
        signal_rank(1, signal.SIGSTOP)(folder)
        wait_until(lambda: progress.read(folder)[0].phase == "communication_exposed")
        seen.append(progress.read(folder)[0].phase)

    config = small(**LONG | {"train__step_timeout_seconds": 3.0, "parallel__zero_stage": 3})
    outcome, _ = execute(session, config, on_start=when_at_step(3, stop_and_see))
    assert seen == ["communication_exposed"]
    assert (outcome.ending, outcome.rank) == (Ending.HANG, 1)
    assert "rank 0 waited, rank 1 did not arrive" in outcome.reason


def test_nccl_ranks_are_explained_the_same_way(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    left(tmp_path, 0, 7)
    left(tmp_path, 1, 0)
    told = str(hang.explain(page, tmp_path))
    assert told == "all_reduce of 48 bytes, call 7 of group dp: rank 0 waited, rank 1 did not arrive"
    assert page.dump_requested()
    page.close()


def test_calls_over_gloo_beside_nccl_do_not_hide_the_hang(tmp_path: Path) -> None:
    """A checkpoint's side group has calls in the other recorder, and those have ended."""
    page = Progress(tmp_path, 2)
    side = {"profiling_name": "gloo:broadcast", "process_group": ["9", "checkpoints"], "state": "scheduled"}
    saved = nccl_bytes([nccl_entry(number, **side, retired=True) for number in (1, 2)]).decode()
    for rank, calls in enumerate((7, 0)):
        left(tmp_path, rank, calls)
        path = tmp_path / run_folder.FLIGHT / f"rank-{rank}.json"
        written = json.loads(path.read_text())
        path.write_text(json.dumps(written | {"dumps": [*written["dumps"], saved]}))
    told = str(hang.explain(page, tmp_path))
    assert told == "all_reduce of 48 bytes, call 7 of group dp: rank 0 waited, rank 1 did not arrive"
    page.close()


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    left(tmp_path, 0, 7, dumps=["junk"])
    (tmp_path / run_folder.FLIGHT / "rank-1.json").write_text("{")
    assert hang.explain(page, tmp_path) is None
    page.close()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_recorder_of_the_ranks_own_backend_is_read(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """NCCL keeps its calls in a recorder of its own."""
    monkeypatch.setattr(last_calls.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(last_calls.flight_recorder, "take", lambda asked: [f"of {asked}".encode()])
    assert last_calls._dumps() == [f"of {backend}"]
