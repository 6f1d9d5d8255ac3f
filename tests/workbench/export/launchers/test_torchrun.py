"""Runs that torchrun starts: sampled on each host, and as ready for orders as those of our own launcher."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.run import progress, run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.engine.torchrun import at_step, needs_names, of_node, on_one_host, tiny, torchrun
from tests.support.runs import execute
from tests.support.waiting import wait_until
from tests.workbench.commands.test_bad_input import free_port
from tests.workbench.conftest import Run
from workbench.records.live_snapshot import LiveRun

PATIENCE_SECONDS = 60.0


@pytest.mark.drawn(1, of="runs under torchrun")
def test_it_is_sampled_and_takes_orders(command: Run, tmp_path: Path) -> None:
    with on_one_host(tiny(), tmp_path / "runs") as process:
        folder = at_step(tmp_path / "runs", 5)
        traced = command(
            "control", folder.name, "trace", "steps=2", "--home", folder.parent, "--json"
        ).document
        assert traced["accepted"], traced
        written = command("control", folder.name, "snapshot", "--home", folder.parent, "--json").document
        assert written["accepted"], written
        taker = run_folder.read_json(folder / run_folder.STATUS)["takes_orders"]["pid"]  # type: ignore[index]
        stopped = command("control", folder.name, "stop", "--home", folder.parent, "--json").document
        assert stopped["accepted"], stopped
        assert process.wait(PATIENCE_SECONDS) == 0, process.stdout and process.stdout.read()
    assert not psutil.pid_exists(taker)
    merged = json.loads(gzip.decompress(Path(traced["file"]).read_bytes()))
    first = int(re.findall(r"step-(\d+)-2", traced["file"])[0])
    assert {row["pid"] for row in merged["traceEvents"] if row.get("ph") == "X"} >= {0, 1}
    shown = command("show", folder.name, "--home", folder.parent, "--json").document
    assert shown["outcome"] == "stopped"
    assert sorted((answer["rank"], answer["first"]) for answer in shown["orders"] if answer["recorded"]) == [
        (0, first), (1, first)
    ]  # fmt: skip
    (host,) = shown["hosts"]
    assert (host["host"], host["ranks"]) == (RunRecords(folder / run_folder.RECORDS).hosts()[0][5:], [0, 1])
    assert 0 < host["cpu_fraction"] <= 1
    assert 0 < host["memory_used_bytes"] < host["memory_total_bytes"]
    assert f"host {host['host']}" in command("show", folder.name, "--home", folder.parent).out
    seen = LiveRun(folder).read()
    assert set(seen.processes["rank"]) == {0, 1}
    assert len(seen.host["time_unix"]) >= 2
    assert len(seen.cores["core"]) >= 2


@pytest.mark.drawn(1, of="runs under torchrun")
def test_without_the_process_beside_it_training_goes_on_and_orders_are_refused(
    command: Run, tmp_path: Path
) -> None:
    with on_one_host(tiny(), tmp_path / "runs") as process:
        folder = at_step(tmp_path / "runs", 3)
        taker = run_folder.read_json(folder / run_folder.STATUS)["takes_orders"]["pid"]  # type: ignore[index]
        os.kill(taker, signal.SIGKILL)
        assert wait_until(lambda: psutil.Process(taker).status() == "zombie")
        refused = command("control", folder.name, "trace", "--home", folder.parent)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert "the process that passes on commands is gone" in refused.err
        assert not list((folder / run_folder.COMMANDS).iterdir())
        assert at_step(tmp_path / "runs", progress.read(folder)[0].step + 20) == folder
        assert process.poll() is None


@needs_names
@pytest.mark.drawn(1, of="runs under torchrun")
def test_ranks_are_numbered_as_the_placement_says(command: Run, tmp_path: Path) -> None:
    """Rank 0 is on the second host, which does not keep the store; losses are those of ranks in order."""
    short = {"train__steps": 4}
    with Session(tmp_path / "ours") as session:
        _, summary = execute(session, tiny(**short))
    out, port = tmp_path / "runs", free_port()
    config = tiny(**short, parallel__placement=[1, 0])
    with (
        torchrun(config, out, of_node(0, port), "one") as first,
        torchrun(config, out, of_node(1, port), "two") as second,
    ):
        for process in (first, second):
            assert process.wait(PATIENCE_SECONDS) == 0, process.stdout and process.stdout.read()
    (folder,) = out.glob("*-*-*")
    shown = command("show", folder.name, "--home", out, "--json").document
    assert shown["losses"] == pytest.approx(summary.losses, abs=1e-6)
    assert shown["placement"] == [
        {"rank": 0, "device": 1, "host": "two"},
        {"rank": 1, "device": 0, "host": "one"},
    ]
    assert (
        "rank 0 on device 1 (two), rank 1 on device 0 (one)"
        in command("show", folder.name, "--home", out).out
    )


@pytest.mark.drawn(1, of="runs under torchrun")
def test_a_hang_is_told_while_it_lasts(command: Run, tmp_path: Path) -> None:
    with on_one_host(tiny(train__step_timeout_seconds=2.0), tmp_path / "runs") as process:
        folder = at_step(tmp_path / "runs", 5)
        stuck = progress.read(folder)[1].pid
        os.kill(stuck, signal.SIGSTOP)
        try:
            assert wait_until(lambda: bool(noted(folder)), 20.0)
            hang = noted(folder)
            assert (hang["ending"], hang["rank"]) == ("hang", 1)
            assert "rank 1 made no progress for" in hang["reason"]
            assert "rank 0 waited, rank 1 did not arrive; rank 1 left no record" in hang["reason"]
            assert (
                command("show", folder.name, "--home", folder.parent, "--json").document["state"] == "running"
            )
        finally:
            os.kill(stuck, signal.SIGCONT)
        assert wait_until(lambda: not noted(folder), 20.0)
        command("control", folder.name, "stop", "--home", folder.parent)
        assert process.wait(PATIENCE_SECONDS) == 0, process.stdout and process.stdout.read()
        assert "warning: rank 1 made no progress for" in (process.stdout.read() if process.stdout else "")
    shown = command("show", folder.name, "--home", folder.parent, "--json").document
    assert shown["outcome"] == "stopped"
    records = RunRecords(folder / run_folder.RECORDS)
    told = [event.kind for event in records.events(records.hosts()[0])]
    assert [kind for kind in told if kind.startswith("hang")] == ["hang", "hang_over"]


@pytest.mark.drawn(1, of="runs under torchrun")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_that_its_hang_ends_has_ended_by_it(command: Run, tmp_path: Path) -> None:
    """Rank 0 loses its connection after 2 x 2 s + 30 s; the cause was noted before."""
    with on_one_host(tiny(train__step_timeout_seconds=2.0), tmp_path / "runs"):
        folder = at_step(tmp_path / "runs", 5)
        stuck = progress.read(folder)[1].pid
        os.kill(stuck, signal.SIGSTOP)
        try:
            assert wait_until(lambda: status(folder)["state"] == "ended", 90.0)
        finally:
            os.kill(stuck, signal.SIGKILL)
    shown = command("show", folder.name, "--home", folder.parent, "--json").document
    assert (shown["outcome"], shown["rank"]) == ("hang", 1)
    assert shown["step_seconds"]


def status(folder: Path) -> dict[str, Any]:
    return run_folder.read_json(folder / run_folder.STATUS) or {}


def noted(folder: Path) -> dict[str, Any]:
    return status(folder).get("hang") or {}


@pytest.mark.drawn(1, of="runs under torchrun")
@needs_names
def test_several_hosts_begin_an_order_at_the_same_step(command: Run, tmp_path: Path) -> None:
    out, port = tmp_path / "runs", free_port()
    with (
        torchrun(tiny(), out, of_node(0, port), "first") as one,
        torchrun(tiny(), out, of_node(1, port), "second.site") as other,
    ):
        folder = at_step(out, 5)
        orders = [
            command("control", folder.name, *what, "--home", out, "--json").document
            for what in (("trace", "steps=2"), ("snapshot", "steps=0"))
        ]
        assert [order["accepted"] for order in orders] == [True] * 2, orders
        command("control", folder.name, "stop", "--home", out)
        codes = [process.wait(PATIENCE_SECONDS) for process in (one, other)]
        assert codes == [0, 0], [process.stdout and process.stdout.read() for process in (one, other)]
    shown = command("show", folder.name, "--home", out, "--json").document
    steps = [[row["step"] for row in shown["orders"] if row["rank"] == rank] for rank in (0, 1)]
    assert len(steps[0]) == 2
    assert steps[0] == steps[1]
    assert [(host["host"], host["ranks"]) for host in shown["hosts"]] == [
        ("first", [0]),
        ("second-site", [1]),
    ]
    seen = LiveRun(folder).read()
    assert list(seen.hosts) == ["first", "second-site"]
    assert [set(seen.select_host(name).processes["rank"]) for name in (None, *seen.hosts)] == [{0}, {0}, {1}]
    lasts = [
        RunRecords(folder / run_folder.RECORDS).table(rank, "step").column("step")[-1] for rank in (0, 1)
    ]
    assert lasts[0] == lasts[1]
