"""Whole studies on real ranks, from the command line: killed, resumed, with failing trials, on one device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from engine.run import progress
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.drawn(1, of="walks")]

STUDY: dict[str, Any] = {
    "name": "walk",
    "ranks": 2,
    "trials": 4,
    "base": {
        "model": {"layers": 2},
        "data": {"sequence_length": 32},
        "batch": {"global_batch": 8, "micro_batch": 2},
        "train": {"steps": 30, "warmup": 2},
        "device": "cpu",
    },
    "space": {"parallel.tp": [1, 2], "parallel.pp": [1, 2], "batch.micro_batch": [1, 2, 4]},
    "confirm_repeats": 0,
    "racing": False,
}


def start(study: dict[str, Any], tmp_path: Path) -> subprocess.Popen[str]:
    """``workbench tune`` with JSON on stdout."""
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    command = [
        sys.executable,
        "-m",
        "workbench",
        "tune",
        str(file),
        "--home",
        str(tmp_path / "home"),
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The study document of a tune command that has to succeed."""
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    document: dict[str, Any] = json.loads(out)
    return document


def journal(tmp_path: Path) -> list[dict[str, Any]]:
    """Whole lines of the study's journal."""
    path = tmp_path / "home" / "studies" / "walk" / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def tells(tmp_path: Path) -> int:
    return sum(line["kind"] == "tell" for line in journal(tmp_path))


def training(tmp_path: Path) -> list[progress.RankProgress]:
    """Ranks of the run that is going, once all of them are in their steps."""
    open_runs = [line["run"] for line in journal(tmp_path) if line["kind"] == "started"]
    done = {line.get("run") for line in journal(tmp_path) if line["kind"] == "tell"}
    for run in open_runs:
        if run not in done:
            ranks = progress.read(tmp_path / "home" / run)
            if len(ranks) == 2 and min(rank.step for rank in ranks) >= 3:
                return ranks
    return []


def test_a_killed_controller_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    process = start(STUDY, tmp_path)
    assert wait_until(lambda: tells(tmp_path) >= 1 and bool(training(tmp_path)), 90)
    told = [line for line in journal(tmp_path) if line["kind"] == "tell"]
    pids = [rank.pid for rank in training(tmp_path)]
    process.kill()
    process.communicate()
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 15)

    document = finish(start(STUDY, tmp_path))
    good = [trial for trial in document["trials"] if trial["outcome"] == "completed"]
    lost = [trial for trial in document["trials"] if trial["outcome"] == "lost"]
    assert len(good) == STUDY["trials"]
    assert len(lost) == 1
    assert len({trial["run"] for trial in good}) == len(good)
    assert [line for line in journal(tmp_path) if line["kind"] == "tell"][: len(told)] == told
    assert (
        document["best"]["value"] >= document["baseline"]["value"] or document["gain"]["verdict"] != "better"
    )


def test_a_killed_rank_costs_one_trial_which_is_proposed_again(tmp_path: Path) -> None:
    process = start(STUDY, tmp_path)
    assert wait_until(lambda: tells(tmp_path) >= 1 and bool(training(tmp_path)), 90)
    os.kill(training(tmp_path)[1].pid, signal.SIGKILL)
    document = finish(process)
    crashed = [trial for trial in document["trials"] if trial["outcome"] == "crashed"]
    assert len(crashed) == 1
    assert "SIGKILL" in crashed[0]["reason"]
    again = [trial for trial in document["trials"] if trial["config"] == crashed[0]["config"]]
    assert [trial["outcome"] for trial in again] == ["crashed", "completed"]
    assert sum(trial["outcome"] == "completed" for trial in document["trials"]) == STUDY["trials"]


def test_an_out_of_memory_point_is_data_and_not_tried_twice(tmp_path: Path) -> None:
    base = STUDY["base"] | {
        "data": {"sequence_length": 1024},
        "batch": {"global_batch": 64, "micro_batch": 1},
        "train": {"steps": 2, "warmup": 1, "validation_batches": 0},
        "memory": {"limit_gib": 0.9},
    }
    space = {"parallel.tp": [1], "parallel.pp": [1], "batch.micro_batch": [1, 32]}
    document = finish(start(STUDY | {"base": base, "space": space, "trials": 2}, tmp_path))
    outcomes = {trial["config"]["batch.micro_batch"]: trial["outcome"] for trial in document["trials"]}
    assert outcomes == {1: "completed", 32: "oom"}
    assert len(document["trials"]) == 2
    assert document["best"]["config"]["batch.micro_batch"] == 1


def test_on_one_device_the_space_is_small_and_the_study_says_so(tmp_path: Path) -> None:
    study = {key: value for key, value in STUDY.items() if key != "space"} | {"ranks": 1, "trials": 3}
    document = finish(start(study, tmp_path))
    for key in ("batch.micro_batch", "memory.recompute", "compile"):
        assert all(key in trial["config"] for trial in document["trials"])
    assert "micro-batch" in document["space_note"]
    assert "compile" in document["space_note"]
    assert all(trial["outcome"] == "completed" for trial in document["trials"])


def test_another_space_under_the_same_name_is_refused(tmp_path: Path) -> None:
    finish(start(STUDY | {"trials": 1}, tmp_path))
    before = journal(tmp_path)
    process = start(STUDY | {"space": {"parallel.tp": [1]}}, tmp_path)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(error.strip().splitlines()) == 1
    assert "walk" in error
    assert journal(tmp_path) == before
