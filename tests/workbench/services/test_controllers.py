"""Two controllers on halves of this host: real trials at once, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.run import ownership, run_folder
from tests.support.waiting import wait_until
from tests.workbench.conftest import Run
from tuning.execution import device_slices

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two trials need two cores")
long = pytest.mark.drawn(1, of="side by side")


def study_file(folder: Path, **more: Any) -> Path:
    tree = {
        "name": "beside", "ranks": 1, "trials": 4, "confirm_repeats": 1, "confirm_runners_up": 0, "racing": False,
        "prior": "none",
        "base": {"device": "cpu", "model": {"layers": 1}, "data": {"sequence_length": 64},
                 "batch": {"global_batch": 8}, "train": {"steps": 8, "warmup": 2, "validation_batches": 0}},
        "space": {"batch.micro_batch": [1, 2, 4, 8], "memory.recompute": ["none", "full"]},
    } | more  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(json.dumps(tree))
    return path


def tune(home: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "workbench", "tune", *map(str, arguments), "--home", str(home)]


@long
def test_trials_run_beside_each_other_and_are_confirmed_alone(home: Path, tmp_path: Path) -> None:
    command = tune(home, study_file(tmp_path), "--side-by-side", 2, "--join", "--json")
    known = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, env=known, check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    done = json.loads(told.stdout)
    pids = {trial["controller"]["pid"] for trial in done["trials"]}
    searched = [row for row in done["trials"] if row["confirms"] is None]
    assert (done["state"], len(pids), done["trials_done"]) == ("ended", 2, 4)
    assert any(row["beside"] > 0 for row in searched)
    assert all(row["beside"] == 0 for row in done["trials"] if row["confirms"] is not None)
    assert (searched[0]["source"], searched[0]["beside"]) == ("baseline", 0)
    assert len({row["run"] for row in done["trials"]}) == len(done["trials"])
    assert (run_folder.read_json(home / "studies" / "beside" / run_folder.STATUS) or {})["state"] == "ended"
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_too_many_are_refused(command: Run, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    path = study_file(tmp_path, side_by_side=cores + 1)
    command("tune", path).refused(f"side_by_side={cores + 1}", f"this host's {cores} cores")
    command("tune", path, "--storage", "postgresql://nobody@nowhere/x").refused("leave out --storage")


def test_who_joins_has_parts_of_a_host_that_nobody_else_uses(
    command: Run, home: Path, tmp_path: Path
) -> None:
    """Another controller here may have all devices; one on another host has none of ours."""
    path, place = study_file(tmp_path, side_by_side=2), home / "studies" / "beside" / "controllers"
    place.mkdir(parents=True)
    run_folder.write_json(place / "here.json", asdict(ownership.this_process()))
    command("tune", path, "--join").refused("side_by_side", f"process {os.getpid()} on", "join it with 1")
    elsewhere = asdict(ownership.this_process()) | {"host": "elsewhere", "seen_unix": time.time()}
    run_folder.write_json(place / "here.json", elsewhere)
    device_slices.check_alone(place.parent, 2)


@long
def test_nothing_outlives_a_controller_that_is_killed(home: Path, tmp_path: Path) -> None:
    long = ["--set", "base.train.steps=4000", "--set", "base.train.warmup=1"]
    command = tune(home, study_file(tmp_path, trials=50), "--side-by-side", 2, *long)
    status = home / "studies" / "beside" / run_folder.STATUS

    def controllers() -> set[int]:
        return {member["pid"] for member in (run_folder.read_json(status) or {}).get("controllers") or []}

    known = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=known, stderr=subprocess.DEVNULL) as parent:
        try:
            assert wait_until(lambda: len(controllers()) == 2, 60.0)
            family = psutil.Process(parent.pid).children(recursive=True)
            assert controllers() <= {parent.pid, *(one.pid for one in family)}
        finally:
            parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not any(map(_lives, family)), 20.0), family


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
