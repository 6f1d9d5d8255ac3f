"""The command ``lab``, and what a run in a lab shows, leaves and is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import netns
from engine.launch import lab, labs
from tests.support.lab import needs_lab
from tests.workbench.conftest import Run
from workbench import live
from workbench.host_figures import interfaces
from workbench.host_series import RateSeries, interface_series

#: A rate nobody else would ask for, so that a lab that stands already is left alone.
RATE = 123.0
PATIENCE_SECONDS = 60.0
RUN = ["--hosts", "2", "--rate-mbit", str(RATE)]


@pytest.fixture
def clean() -> Iterator[None]:
    """No lab of this rate stays behind."""
    yield
    for one in labs.standing():
        if one.rate_mbit == RATE:
            one.down()


def of_rate(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in document if one["rate_mbit"] == RATE]


@needs_lab
@pytest.mark.usefixtures("clean")
def test_up_status_down(command: Run) -> None:
    up = command("lab", "up", *RUN, "--json")
    assert up.code == 0
    assert up.document["kept"]
    assert len(up.document["namespaces"]) == 2
    assert command("lab", "up", *RUN).code == 0
    (shown,) = of_rate(command("lab", "status", "--json").document["labs"])
    assert shown["namespaces"] == up.document["namespaces"]
    assert all(isinstance(sent, int) for sent in shown["sent_bytes"])
    assert "123 Mbit/s, kept" in command("lab", "status").out
    down = command("lab", "down", "--json")
    assert len(of_rate(down.document["removed"])) == 1
    assert not of_rate(command("lab", "status", "--json").document["labs"])


def test_wrong_input(command: Run) -> None:
    assert command("lab", "up", "--rate-mbit", "3").code == 2
    assert command("lab", "up", "--hosts", "1").code == 2


def test_without_the_means_one_line_tells_why(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "_capable", lambda bit: False)
    monkeypatch.setattr(netns, "_COMMANDS", ())
    for arguments in (["up"], ["down"]):
        done = command("lab", *arguments)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "CAP_NET_ADMIN" in done.err
        assert "root" in done.err
    status = command("lab", "status", "--json")
    assert status.code == 0
    assert not status.document["available"]
    assert "CAP_SYS_ADMIN" in status.document["reason"]


@pytest.mark.usefixtures("home")
def test_a_study_that_asks_for_it_is_refused_before_its_folder_exists(
    command: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns, "_capable", lambda bit: False)
    monkeypatch.setattr(netns, "_COMMANDS", ())
    study = tmp_path / "study.yaml"
    study.write_text("name: slow\nranks: 2\ntrials: 2\nbase: {lab: {hosts: 2}}\n")
    command("tune", str(study)).refused("base.lab.hosts", "CAP_NET_ADMIN")
    assert not list(home.rglob("slow*"))


def start(home: Path, config: Path, steps: int) -> subprocess.Popen[str]:
    """``train`` in a lab, as a process of its own."""
    sets = [f"lab.rate_mbit={RATE}", "lab.hosts=2", "parallel.dp=2", f"train.steps={steps}", "train.warmup=1"]
    sets += ["model.layers=2", "model.hidden=64", "model.ffn_hidden=128", "data.sequence_length=32"]
    sets += ["batch.global_batch=8", "device=cpu"]
    command = [sys.executable, "-m", "workbench", "train", str(config), "--home", str(home), "--json"]
    command += [part for text in sets for part in ("--set", text)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def training(home: Path, process: subprocess.Popen[str]) -> lab.Lab:
    """The lab of a process, once its ranks train."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not [path for path in home.glob("*/records/rank-0.step") if path.stat().st_size]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    (found,) = [one for one in labs.standing() if one.pid == process.pid]
    return found


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("model: {preset: tiny}\n")
    return path


@needs_lab
@pytest.mark.usefixtures("clean")
def test_a_run_tells_what_went_over_the_wire(command: Run, home: Path, asked: Path) -> None:
    with start(home, asked, 4) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["config"]["lab"] == {"hosts": 2, "rate_mbit": RATE}
    assert document["wire_bytes_per_step"] == pytest.approx(document["wire_bytes_measured"], rel=0.01)
    assert document["communication"][0]["wire_bytes"] > document["communication"][0]["bytes"]
    rows = {(*row["ranks"], row["interface"]): row for row in document["interfaces"]}
    assert set(rows) >= {(0, "data"), (1, "data")}
    for rank in (0, 1):
        row, other = rows[rank, "data"], rows[1 - rank, "data"]
        assert row["host"].endswith(f"lab host {rank}")
        assert row["sent_bytes_per_second"] == pytest.approx(other["received_bytes_per_second"], rel=0.1)
        payload = document["wire_bytes_per_step"] / max(document["step_samples"])
        assert payload * 0.5 < row["sent_bytes_per_second"] < RATE * 1.1e6 / 8
    drawn = live.LiveRun(home / document["id"]).read()
    lines = interface_series(drawn.interfaces, 0.0, 2).lines
    assert {"rank 0: data sent", "rank 0: data received", "rank 1: data sent"} <= {
        line.name for line in lines
    }
    assert [trace.name for trace in interfaces(RateSeries(lines)).data] == [line.name for line in lines]
    text = command("show", document["id"]).out
    assert "data of rank 1: " in text
    assert "on the wire" in text
    assert "counted at the interfaces" in text
    assert "lab of 2 hosts, links of 123 Mbit/s" in text
    assert not [one for one in labs.standing() if one.pid == process.pid]


@needs_lab
@pytest.mark.usefixtures("clean")
def test_ctrl_c_takes_the_lab_down(home: Path, asked: Path) -> None:
    with start(home, asked, 100_000) as process:
        made = training(home, process)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert made not in labs.standing()


@needs_lab
@pytest.mark.usefixtures("clean")
def test_lab_down_clears_what_a_killed_run_left(command: Run, home: Path, asked: Path) -> None:
    with start(home, asked, 100_000) as process:
        made = training(home, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
    (shown,) = of_rate(command("lab", "status", "--json").document["labs"])
    assert shown["deserted"]
    assert "left by process" in command("lab", "status").out
    removed = of_rate(command("lab", "down", "--json").document["removed"])
    assert [one["owner_pid"] for one in removed] == [made.pid]
    assert made not in labs.standing()
