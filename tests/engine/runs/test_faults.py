"""What happens to a run when a rank, the machine or the controller fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config.run_config import RunConfig
from engine.run import progress, run_folder
from engine.run.outcome import Ending
from engine.run.ownership import is_running
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.runs import execute, small
from tests.support.waiting import wait_until
from workbench.home import runs

LONG = {"train__steps": 100_000, "parallel__dp": 2, "train__validation_batches": 0}


def when_at_step(step: int, act: Callable[[Path], None]) -> Callable[[Path], None]:
    """An ``on_start`` that acts once every rank has passed a step."""

    def wait_and_act(folder: Path) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ranks = progress.read(folder)
            if len(ranks) > 1 and min(rank.step for rank in ranks) >= step:
                act(folder)
                return
            time.sleep(0.02)

    return lambda folder: threading.Thread(target=wait_and_act, args=(folder,), daemon=True).start()


def test_ranks_of_a_run_that_nobody_watches_any_more_serve_no_other_one(session: Session) -> None:
    """Ctrl-C while it goes: its ranks' late reports would be taken for those of the next run."""

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(session, small(parallel__dp=2, train__steps=30), should_stop=interrupted)
    outcome, summary = execute(session, small(parallel__dp=2))
    assert outcome.good, outcome
    assert len(summary.losses) == 3


def signal_rank(rank: int, number: int) -> Callable[[Path], None]:
    """Send a signal to one rank's process."""
    return lambda folder: os.kill(progress.read(folder)[rank].pid, number)


def assert_next_run_is_good(session: Session) -> None:
    outcome, summary = execute(session, small(parallel__dp=2))
    assert outcome.good, outcome
    assert len(summary.losses) == 3


def test_a_killed_rank_is_named_and_keeps_its_records(session: Session) -> None:
    at = when_at_step(3, signal_rank(1, signal.SIGKILL))
    outcome, summary = execute(session, small(**LONG), on_start=at)
    assert (outcome.ending, outcome.rank, outcome.killed_from_outside) == (Ending.CRASHED, 1, True)
    assert "SIGKILL" in outcome.reason
    assert outcome.phase in progress.STATES
    assert len(summary.losses) >= 3
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    assert len(records.table(1, "step").rows()) >= 3
    assert_next_run_is_good(session)


@pytest.mark.drawn(2, of="processes that are killed")
def test_a_hung_rank_is_named_not_its_victims(session: Session) -> None:
    at = when_at_step(3, signal_rank(1, signal.SIGSTOP))
    began = time.monotonic()
    outcome, _ = execute(session, small(**LONG | {"train__step_timeout_seconds": 2.0}), on_start=at)
    assert (outcome.ending, outcome.rank) == (Ending.HANG, 1)
    assert "no progress" in outcome.reason
    assert time.monotonic() - began < 30
    assert_next_run_is_good(session)


@pytest.mark.drawn(2, of="hangs")
def test_a_rank_that_was_stopped_between_runs_is_named_though_it_never_began(session: Session) -> None:
    outcome, summary = execute(session, small(parallel__dp=2))
    assert outcome.good
    os.kill(progress.read(session.home / summary.id)[1].pid, signal.SIGSTOP)
    outcome, _ = execute(session, small(parallel__dp=2, train__step_timeout_seconds=2.0))
    assert (outcome.ending, outcome.rank, outcome.phase) == (Ending.HANG, 1, "starting")
    assert_next_run_is_good(session)


@pytest.mark.drawn(2, of="processes that are killed")
def test_a_killed_fork_server_costs_a_run_and_blames_no_rank(session: Session) -> None:
    left: list[psutil.Process] = []

    def kill_server(folder: Path) -> None:
        ranks = [psutil.Process(rank.pid) for rank in progress.read(folder)]
        left.extend(ranks)
        ranks[0].parent().kill()

    outcome, _ = execute(session, small(**LONG), on_start=when_at_step(3, kill_server))
    assert (outcome.ending, outcome.rank, outcome.killed_from_outside) == (Ending.CRASHED, None, True)
    assert "fork server" in outcome.reason
    assert wait_until(lambda: not any(is_running(rank.pid) for rank in left))
    assert_next_run_is_good(session)


def test_a_rank_out_of_memory_says_so(session: Session) -> None:
    config = small(parallel__dp=2, model__preset="small", memory__limit_gib=1.0)
    outcome, _ = execute(session, config)
    assert outcome.ending is Ending.OOM
    assert outcome.rank in (0, 1)
    assert outcome.phase in ("building", "forward", "backward", "optimizer")
    assert any("memory" in line for line in outcome.last_lines)
    assert_next_run_is_good(session)


@pytest.mark.drawn(1, of="faults")
def test_a_run_past_its_deadline_is_timed_out(session: Session) -> None:
    for seconds in (3.0, 6.0, 24.0):  # a slow machine may measure no step in the first
        outcome, summary = execute(session, small(**LONG | {"train__timeout_seconds": seconds}))
        ended = outcome.ending, outcome.rank in (0, 1), outcome.phase in progress.STATES
        assert ended == (Ending.TIMED_OUT, True, True)
        if summary.tokens_per_second is not None:
            break
    assert summary.tokens_per_second is not None
    assert_next_run_is_good(session)


def test_a_diverging_run_is_no_result(session: Session) -> None:
    config = small(parallel__dp=2, train__learning_rate=1e30, train__steps=20, train__clip_norm=None)
    outcome, _ = execute(session, config)
    assert outcome.ending is Ending.DIVERGED
    assert "step" in outcome.reason
    assert_next_run_is_good(session)


def test_a_stop_ends_all_ranks_at_the_same_step(session: Session) -> None:
    reached = threading.Event()
    at = when_at_step(5, lambda folder: reached.set())
    outcome, summary = execute(session, small(**LONG), should_stop=reached.is_set, on_start=at)
    assert outcome.ending is Ending.STOPPED
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    lengths = {len(records.table(rank, "step").rows()) for rank in (0, 1)}
    assert len(lengths) == 1
    assert lengths.pop() >= 5


def test_a_stop_command_in_the_run_folder_is_obeyed(session: Session) -> None:
    def command(folder: Path) -> None:
        run_folder.write_json(folder / run_folder.COMMANDS / "1.json", {"id": "1", "command": "stop"})

    outcome, _ = execute(session, small(**LONG), on_start=when_at_step(3, command))
    assert outcome.ending is Ending.STOPPED


def test_an_illegal_layout_never_reaches_a_launch(session: Session) -> None:
    before = set(session.home.iterdir())
    outcome, summary = execute(session, small(parallel__tp=3))
    assert outcome.ending is Ending.ILLEGAL
    assert "heads" in outcome.reason
    assert (set(session.home.iterdir()), summary.losses) == (before, [])


CONTROLLER = """
import sys
from pathlib import Path
from engine.session import Session
from tests.support.runs import execute, small
from tests.support.waiting import wait_until
if __name__ == "__main__":
    with Session(Path(sys.argv[1])) as session:
        execute(session, small(train__steps=100000, parallel__dp=2))
"""


@pytest.mark.drawn(2, of="processes that are killed")
def test_ranks_die_with_a_killed_controller_and_the_run_is_lost(tmp_path: Path) -> None:
    script = tmp_path / "controller.py"
    script.write_text(CONTROLLER)
    home = tmp_path / "home"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    controller = subprocess.Popen([sys.executable, str(script), str(home)], env=environment)
    folder = wait_for_step(home, 3)
    pids = [rank.pid for rank in progress.read(folder)]
    os.kill(pids[0], signal.SIGSTOP)
    controller.kill()
    controller.wait()
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert runs.ending(run_folder.RunStatus.from_folder(folder))[:2] == ("ended", "lost")
    assert len(RunRecords(folder / run_folder.RECORDS).table(1, "step").rows()) >= 3


def wait_for_step(home: Path, step: int) -> Path:
    def there() -> bool:
        ranks = [rank for folder in folders() for rank in progress.read(folder)]
        return len(ranks) == 2 and min(rank.step for rank in ranks) >= step

    def folders() -> list[Path]:
        return list(home.iterdir()) if home.exists() else []

    assert wait_until(there, 60)
    return folders()[0]


def test_warm_ranks_are_replaced_before_they_leak(session: Session) -> None:
    config: RunConfig = small(train__steps=1, train__warmup=0, train__validation_batches=0, model__layers=1)
    pids: list[Any] = []
    for _ in range(32):
        pids += [None]
        outcome, summary = execute(session, config)
        assert outcome.good
        pids[-1] = progress.read(session.home / summary.id)[0].pid
    assert 1 < len(set(pids)) < 4


@pytest.mark.parametrize("home", ["file/inside", "file"])
def test_a_home_that_cannot_be_written_is_bad_input(tmp_path: Path, home: str) -> None:
    from engine.config.errors import InputError

    (tmp_path / "file").write_text("not a folder")
    with Session(tmp_path / home) as session, pytest.raises(InputError, match="cannot be written"):
        execute(session, small())
