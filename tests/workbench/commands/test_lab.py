"""The command ``lab``, and what a run in a lab shows, leaves and is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.formulas.network import Shape
from engine.launch.lab import lab, registry
from engine.run import netns
from tests.support.engine.lab import needs_lab, on_the_wire
from tests.workbench.conftest import Run
from workbench.figures.host import RateSeries, interface_series, interfaces
from workbench.records import live_snapshot

#: A rate nobody else would ask for, so that a lab that stands already is left alone.
RATE = 123.0
RATE_KBIT = 123_000
PATIENCE_SECONDS = 60.0
RUN = ["--hosts", "2", "--rate-mbit", str(RATE)]


@pytest.fixture
def clean() -> Iterator[None]:
    """No lab of this rate stays behind, and none is there that killed tests left."""
    _take_down()
    yield
    _take_down()


def _take_down() -> None:
    for one in registry.list_labs():
        if RATE_KBIT in one.shape.rates_kbit:
            one.tear_down()


def of_rate(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in document if RATE in one["rates_mbit"]]


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
    assert [link["name"] for link in shown["links"]] == ["host 0", "host 1"]
    for link in shown["links"]:
        assert link["up"]
        assert isinstance(link["sent_bytes"], int)
        assert link["measured_sent_mbit"] == pytest.approx(RATE, rel=0.05)
        assert link["measured_received_mbit"] == pytest.approx(RATE, rel=0.05)
    told = command("lab", "status").out
    assert "123 Mbit/s, kept" in told
    assert re.search(r"host 0: 123 Mbit/s, measured 1[12]\d", told)  # to 5 %, as above
    down = command("lab", "down", "--json")
    assert len(of_rate(down.document["removed"])) == 1
    assert not of_rate(command("lab", "status", "--json").document["labs"])


ISLANDS = ["--islands", "1,1", "--rates-mbit", f"none,{RATE}", "--between-mbit", str(RATE)]


@needs_lab
@pytest.mark.usefixtures("clean")
def test_islands_up_status_down(command: Run) -> None:
    up = command("lab", "up", *ISLANDS, "--json").document
    assert (up["hosts"], up["islands"], up["rates_mbit"], up["between_mbit"]) == (
        2,
        [1, 1],
        [None, RATE],
        RATE,
    )
    assert [link["name"] for link in up["links"]] == ["host 0", "host 1", "island 0", "island 1"]
    assert [link["rate_mbit"] for link in up["links"]] == [None, RATE, RATE, RATE]
    assert [link["measured_sent_mbit"] is None for link in up["links"]] == [True, False, False, False]
    assert up["ranks"] == [[], []]
    told = command("lab", "status").out
    assert (
        "2 hosts in islands of 1 and 1, links of not limited and 123 Mbit/s, 123 Mbit/s between islands, kept"
        in told
    )
    assert len(of_rate(command("lab", "down", "--json").document["removed"])) == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--rate-mbit", "3"], ""),
        (["--hosts", "1"], ""),
        (["--islands", "two"], "--islands"),
        (["--islands", "3"], "--islands"),
        (["--islands", "2,x"], "--islands"),
        (["--rates-mbit", "10,20"], "--rates-mbit"),
        (["--islands", "2,2", "--rates-mbit", "10,2000000"], "--rates-mbit"),
        (["--between-mbit", "10"], "--between-mbit"),
    ],
)
def test_wrong_input(command: Run, arguments: list[str], field: str) -> None:
    done = command("lab", "up", *arguments)
    assert done.code == 2
    assert field in done.err
    assert not done.out


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


def start(home: Path, config: Path, steps: int, *more: str) -> subprocess.Popen[str]:
    """``train`` in a lab, as a process of its own."""
    sets = [
        f"lab.rate_mbit={RATE}",
        "lab.hosts=2",
        *more,
        "parallel.dp=2",
        f"train.steps={steps}",
        "train.warmup=1",
    ]
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
    (found,) = [one for one in registry.list_labs() if one.pid == process.pid]
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
    asked_for = {name: value for name, value in document["config"]["lab"].items() if value is not None}
    assert asked_for == {"hosts": 2, "rate_mbit": RATE}
    calls = sum(row["calls"] for row in document["communication"])
    assert document["wire_bytes_per_step"] == on_the_wire(document["wire_bytes_measured"], calls)
    assert document["communication"][0]["wire_bytes"] > document["communication"][0]["bytes"]
    rows = {(*row["ranks"], row["interface"]): row for row in document["interfaces"]}
    assert set(rows) >= {(0, "data"), (1, "data")}
    for rank in (0, 1):
        row, other = rows[rank, "data"], rows[1 - rank, "data"]
        assert row["host"].endswith(f"lab host {rank}")
        assert row["sent_bytes_per_second"] == pytest.approx(other["received_bytes_per_second"], rel=0.1)
        payload = document["wire_bytes_per_step"] / max(document["step_samples"])
        assert payload * 0.5 < row["sent_bytes_per_second"] < RATE * 1.1e6 / 8
    drawn = live_snapshot.LiveRun(home / document["id"]).read()
    lines = interface_series(drawn.interfaces, 0.0, 2).lines
    assert {"rank 0: data sent", "rank 0: data received", "rank 1: data sent"} <= {
        line.name for line in lines
    }
    assert [trace.name for trace in interfaces(RateSeries(lines)).data] == [line.name for line in lines]
    text = command("show", document["id"]).out
    assert "data of rank 1: " in text
    assert "% of 123 Mbit/s" in text
    assert "on the wire" in text
    assert "counted at the interfaces" in text
    assert "lab of 2 hosts, links of 123 Mbit/s" in text
    assert not [one for one in registry.list_labs() if one.pid == process.pid]


#: Two hosts on one switch, and on an island each.
NETWORKS = {"one switch": (), "islands": ("lab.islands=2", f"lab.between_mbit={RATE}")}
networks = pytest.mark.parametrize("network", NETWORKS)


@needs_lab
@pytest.mark.usefixtures("clean")
@networks
@pytest.mark.drawn(1, of="commands that end early")
def test_ctrl_c_takes_the_lab_down(home: Path, asked: Path, network: str) -> None:
    with start(home, asked, 100_000, *NETWORKS[network]) as process:
        made = training(home, process)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert made not in registry.list_labs()


@needs_lab
@pytest.mark.usefixtures("clean")
@networks
@pytest.mark.drawn(1, of="commands that end early")
def test_lab_down_clears_what_a_killed_run_left(command: Run, home: Path, asked: Path, network: str) -> None:
    with start(home, asked, 100_000, *NETWORKS[network]) as process:
        made = training(home, process)
        (shown,) = of_rate(command("lab", "status", "--json").document["labs"])
        (run,) = (path.name for path in home.glob("*") if (path / "records").is_dir())
        assert shown["ranks"] == [[{"run": run, "rank": rank}] for rank in range(2)]
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
    (shown,) = of_rate(command("lab", "status", "--json").document["labs"])
    assert shown["deserted"]
    assert "left by process" in command("lab", "status").out
    removed = of_rate(command("lab", "down", "--json").document["removed"])
    assert [one["owner_pid"] for one in removed] == [made.pid]
    assert made not in registry.list_labs()
    assert not list(netns.FOLDER.glob(f"workbench-lab-{made.pid}-*"))


@needs_lab
@pytest.mark.usefixtures("clean", "home")
def test_trials_of_a_study_share_a_lab(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up, built = lab.Lab.set_up, []
    monkeypatch.setattr(lab.Lab, "set_up", lambda one: (built.append(one), up(one)))
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: slow\nranks: 2\ntrials: 3\nconfirm_repeats: 0\n"
        f"base: {{lab: {{hosts: 2, islands: 2, rate_mbit: {RATE}, between_mbit: 100.0}},"
        " train: {steps: 4, warmup: 1}, model: {layers: 2, hidden: 64, ffn_hidden: 128}, data: {sequence_length: 32},"
        " batch: {global_batch: 8}}\n"
        "space: {batch.micro_batch: [1, 2, 4]}\n"
    )
    done = command("tune", str(study), "--json")
    assert done.code == 0, done.err
    assert [one.shape for one in built] == [Shape((1, 1), (RATE_KBIT,) * 2, 100_000)]
    assert built[0] not in registry.list_labs()
    shown = command("show", "slow", "--json").document
    assert len(shown["trials"]) >= 3
