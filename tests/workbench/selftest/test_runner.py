"""``selftest`` for real on CPU ranks: some quick checks, Ctrl-C and kill -9 on the way, and the whole of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import wait_until
from tests.workbench.conftest import Run
from workbench.selftest.registry import NAMES
from workbench.selftest.results import FOLDER, Selftest, load, newest

COMMAND = [sys.executable, "-m", "workbench", "selftest", "--device", "cpu"]
KEYS = {"name", "title", "proves", "outcome", "reason", "seconds", "measured", "evidence"}
UNITS = ("_seconds", "_bytes", "_count", "_nats", "_fraction", "_percent", "_per_second")


@pytest.mark.timeout(300)
def test_some_checks_on_two_ranks(command: Run, home: Path) -> None:
    done = command("selftest", "--device", "cpu", "--only", "nvml,gpu_kernels,exact_tensor", "--json")
    assert done.code == 0, done.err
    document = done.document
    rows = {row["name"]: row for row in document["checks"]}
    assert all(row.keys() == KEYS for row in rows.values())
    assert rows["gpu_kernels"]["outcome"] == "not_possible"
    assert rows["gpu_kernels"]["reason"] == "the CPU was asked for"
    exact = rows["exact_tensor"]
    assert exact["outcome"] == "pass", exact
    assert exact["measured"].keys() == {
        f"{name}_loss_difference_nats" for name in ("tp", "tp_regather", "tp_chunks")
    }
    folder = Path(document["folder"])
    assert folder.parent == home / FOLDER
    assert {"README.md", "checks.json"} <= {path.name for path in folder.iterdir()}
    assert [name for row in rows.values() for name in row["evidence"] if not (folder / name).is_file()] == []
    assert "checks/exact_tensor/02-tp/summary.json" in exact["evidence"]
    with zipfile.ZipFile(document["zip"]) as packed:
        assert f"{folder.name}/{exact['evidence'][0]}" in packed.namelist()
    found = newest(home)
    assert found is not None
    assert found[1].good


@pytest.fixture
def at_work(home: Path) -> Iterator[subprocess.Popen[str]]:
    """One check is done, and the ranks of the next one are there."""
    command = [*COMMAND, "--only", "gpu_kernels,memory_savings,killed_rank"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert wait_until(lambda: has_ranks(process.pid), 240.0)
            yield process
        finally:
            process.kill()


def has_ranks(pid: int) -> bool:
    try:
        family = psutil.Process(pid).children(recursive=True)
        return any("forkserver" in " ".join(one.cmdline()) and one.children() for one in family)
    except psutil.Error:
        return False


def kept(home: Path) -> Selftest:
    found = newest(home)
    assert found is not None
    return found[1]


@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="long selftests")
def test_ctrl_c_keeps_what_was_found(home: Path, at_work: subprocess.Popen[str]) -> None:
    family = psutil.Process(at_work.pid).children(recursive=True)
    at_work.send_signal(signal.SIGINT)
    out, err = at_work.communicate(timeout=60)
    assert at_work.returncode == 1
    assert "finished checks are kept" in err
    assert "interrupted in memory_savings: 2 checks have no result" in out
    found = kept(home)
    assert ([row.name for row in found.checks], found.complete) == (["gpu_kernels"], False)
    assert len(list((home / FOLDER).glob("*.zip"))) == 1
    assert wait_until(lambda: not any(process.is_running() for process in family), 20.0)


@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="long selftests")
def test_kill_9_loses_nothing_and_leaves_no_ranks(home: Path, at_work: subprocess.Popen[str]) -> None:
    family = psutil.Process(at_work.pid).children(recursive=True)
    os.kill(at_work.pid, signal.SIGKILL)
    at_work.wait(10)
    found = kept(home)
    assert ([row.name for row in found.checks], found.complete) == (["gpu_kernels"], False)
    assert wait_until(lambda: not any(process.is_running() for process in family), 20.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_of_it_on_cpu_ranks(tmp_path: Path) -> None:
    """Within ten minutes, unless others keep the machine busy: then its seconds say nothing."""
    command = [*COMMAND, "--out", str(tmp_path / "evidence"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1700)
    document = json.loads(done.stdout)
    rows = document["checks"]
    assert [row["name"] for row in rows] == list(NAMES)
    assert [row for row in rows if row["outcome"] == "fail"] == []
    assert done.returncode == 0
    assert [row["name"] for row in rows if not row["reason"]] == []
    assert {row["name"] for row in rows if row["outcome"] == "not_possible"} <= {
        "nvml", "gpu_kernels", "two_on_one_gpu", "recording_cost",
    }  # fmt: skip
    names = [name for row in rows for name in row["measured"]]
    assert [name for name in names if not name.endswith(UNITS)] == []
    files = {name for row in rows for name in row["evidence"]}
    assert "checks/hung_rank/01-hung-rank/flight/rank-0.json" in files
    assert any(name.startswith("checks/trace/01-trace/traces/") for name in files)
    assert load(tmp_path / "evidence") is not None
    busy = os.getloadavg()[1] > 2 * (os.cpu_count() or 1)
    assert document["seconds"] < 600 or busy
