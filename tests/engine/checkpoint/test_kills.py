"""Runs that are killed while they save: what is left is always a good checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.checkpoint import checkpoint_folder
from engine.run import progress
from engine.run.outcome import Ending
from engine.session import Session
from tests.engine.checkpoint.test_checkpointer import LAYOUTS, THIN, losses_of, names_in, step_of, when
from tests.support.runs import execute, small
from tests.support.waiting import wait_until


def kill_ranks(run: Path, chosen: slice) -> None:
    for rank in progress.read(run)[chosen]:
        psutil.Process(rank.pid).send_signal(signal.SIGKILL)


def unfinished(run: Path) -> list[Path]:
    """Checkpoints that are being written, or were when their writer died."""
    return list((run / checkpoint_folder.CHECKPOINTS).glob(".saving-*"))


def check_kill(session: Session, reference: list[float | None], seed: int, layout: dict[str, Any]) -> str:
    """Kill one rank or all while a save is under way, then go on from the last good one; returns what happened."""
    draw = random.Random(seed)
    after, delay, whole = draw.randint(2, 12), draw.random() * 0.04, draw.random() < 0.5
    chosen = slice(None) if whole else slice(1, 2)
    runs: list[Path] = []
    asynchronous = bool(seed % 2)
    settings = {"checkpoint__every_steps": 1, "checkpoint__asynchronous": asynchronous}
    saving = {"train__steps": 100_000, **settings, **layout}

    def saves(run: Path) -> bool:
        runs[:] = [run]
        return step_of(run) >= after and any((run / checkpoint_folder.CHECKPOINTS).glob(".saving-*"))

    on_start = when(saves, lambda: kill_ranks(runs[0], chosen), delay)
    outcome, _ = execute(session, small(**THIN, **saving), on_start=on_start)
    assert outcome.ending in (Ending.CRASHED, Ending.COMM_ERROR), outcome
    left = names_in(runs[0])
    last = checkpoint_folder.last_of(runs[0])
    assert last is not None, left
    step = int(last.name.removeprefix("step-"))
    assert step >= after - 2
    resumed = losses_of(session, train__steps=step + 2, train__resume=str(runs[0]), **layout)
    assert resumed.losses == reference[step : step + 2]
    assert unfinished(runs[0]) == [], "what was left is removed on resuming"
    return f"seed {seed}: {'all ranks' if whole else 'rank 1'} after step {after} + {delay:.3f} s left {left}"


@pytest.fixture(scope="module")
def long_losses(session: Session) -> list[float | None]:
    """Longer than a run lives that is killed after twelve steps."""
    return losses_of(session, train__steps=80, **LAYOUTS["zero1"]).losses


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_during_a_save_goes_on_from_the_last_good_one(
    session: Session, long_losses: list[float | None], seed: int
) -> None:
    print(check_kill(session, long_losses, seed, LAYOUTS["zero1"]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 24))
def test_many_runs_killed_during_a_save(session: Session, long_losses: list[float | None], seed: int) -> None:
    print(check_kill(session, long_losses, seed, LAYOUTS["zero1"]))


def test_what_is_being_written_is_never_swept(session: Session) -> None:
    """Somebody resumes from the run again and again while it saves."""
    stop, swept, sweeping = threading.Event(), [0], list[threading.Thread]()

    def sweep_all_the_time(run: Path) -> None:
        while not stop.is_set():
            checkpoint_folder.sweep(run)
            swept[0] += 1

    def on_start(run: Path) -> None:
        sweeping.append(threading.Thread(target=sweep_all_the_time, args=(run,)))
        sweeping[0].start()

    settings = {"checkpoint__every_steps": 1, "checkpoint__asynchronous": True, "train__steps": 12}
    try:
        outcome, summary = execute(session, small(**THIN, **settings, **LAYOUTS["zero1"]), on_start=on_start)
    finally:
        stop.set()
        sweeping[0].join()
    assert outcome.good
    assert [row.problem for row in summary.checkpoints] == [None] * 12
    assert swept[0] > 100


def test_a_save_removes_what_an_older_one_left(session: Session) -> None:
    def leave(run: Path) -> None:
        left = run / checkpoint_folder.CHECKPOINTS / ".saving-000001"
        left.mkdir(parents=True)
        (left / "__0_0.distcp").write_bytes(bytes(1_000))

    settings = {"checkpoint__every_steps": 2, "train__steps": 2}
    _, summary = execute(session, small(**THIN, **settings, **LAYOUTS["zero1"]), on_start=leave)
    assert [row.problem for row in summary.checkpoints] == [None]
    assert unfinished(session.home / summary.id) == []


CONTROLLER = """
import sys
from pathlib import Path
from engine.session import Session
from tests.engine.checkpoint.test_checkpointer import LAYOUTS, THIN, small
from tests.support.runs import execute
if __name__ == "__main__":
    saving = {"checkpoint__every_steps": 1, "checkpoint__asynchronous": True, "train__steps": 100000}
    with Session(Path(sys.argv[1])) as session:
        execute(session, small(**THIN, **saving, **LAYOUTS["zero1"]))
"""


@pytest.mark.slow
def test_a_run_whose_controller_and_ranks_are_killed_goes_on(
    session: Session, tmp_path: Path, long_losses: list[float | None]
) -> None:
    (tmp_path / "controller.py").write_text(CONTROLLER)
    home = tmp_path / "home"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    controller = subprocess.Popen([sys.executable, tmp_path / "controller.py", home], env=environment)
    assert wait_until(lambda: home.exists() and any(step_of(run) >= 5 for run in home.iterdir()), 60)
    run = next(home.iterdir())
    assert wait_until(lambda: any((run / checkpoint_folder.CHECKPOINTS).glob(".saving-*")), 60)
    controller.kill()
    kill_ranks(run, slice(None))
    controller.wait()
    last = checkpoint_folder.last_of(run)
    assert last is not None
    step = int(last.name.removeprefix("step-"))
    resumed = losses_of(session, train__steps=step + 2, train__resume=str(run), **LAYOUTS["zero1"])
    assert resumed.losses == long_losses[step : step + 2]
