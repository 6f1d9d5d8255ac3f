"""``calibrate`` for real: a quick one on two ranks, what refers to it, Ctrl-C and kill -9 on the way."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.run.calibration import fingerprint, store
from tests.support.engine.calibrations import write_stale
from tests.support.waiting import wait_until
from tests.workbench.conftest import Run

pytestmark = pytest.mark.drawn(4, of="this machine from the command line")

COMMAND = [sys.executable, "-m", "workbench"]
QUICK = ["calibrate", "--quick", "--ranks", "2", "--device", "cpu"]
CURVE_KEYS = {"threads", "device", "backend", "measured_unix", "fit", "points"}
POINT_KEYS = {"seconds", "low_seconds", "high_seconds", "windows", "held_out"}
SECTIONS = {
    "gemm": ({"dtype", "ranks", "peak_flops_per_second"}, {"matrix_size", "flops_per_second"}),
    "memory": ({"operation", "ranks", "peak_bytes_per_second"}, {"array_bytes", "bytes_per_second"}),
    "collectives": ({"operation", "group_size", "peak_bandwidth"}, {"bytes", "bus_bandwidth"}),
}
TRAIN = ["model.layers=2", "model.hidden=64", "model.ffn_hidden=128", "data.sequence_length=32",
         "batch.global_batch=8", "device=cpu", "parallel.dp=2", "train.steps=8", "train.warmup=2"]  # fmt: skip


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A home after a quick calibration, and what that printed."""
    home = tmp_path_factory.mktemp("calibrated")
    command = [*COMMAND, "--home", str(home), *QUICK, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return home, document


@pytest.fixture
def at_work(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A calibration that has finished a curve."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *QUICK], stdout=pipe, stderr=pipe, text=True) as process:
        assert wait_until(lambda: any((home / store.FOLDER).glob("*.json")), 60.0)
        yield process
        process.kill()


def test_the_document_has_stable_keys(calibrated: tuple[Path, dict[str, Any]]) -> None:
    home, document = calibrated
    assert document.keys() == {"home", "state", "reason", "changed", "fingerprint", "calibration", "links"}
    assert document["links"] == []
    assert (document["state"], document["reason"], document["changed"]) == ("matching", None, [])
    found = document["calibration"]
    assert found["fingerprint"] == document["fingerprint"]["id"] == fingerprint.this_machine().id
    assert Path(found["file"]).parent == home / "calibrations"
    assert found["complete"]
    for section, (curve_keys, point_keys) in SECTIONS.items():
        for curve in found[section]:
            assert curve.keys() == CURVE_KEYS | curve_keys
            assert all(point.keys() == POINT_KEYS | point_keys for point in curve["points"])
    for curve in found["collectives"]:
        assert curve["fit"].keys() == {"segments", "median_error", "largest_error", "held_out_points"}
    assert found["transfers"] == []


def test_the_numbers_make_sense(calibrated: tuple[Path, dict[str, Any]]) -> None:
    found = calibrated[1]["calibration"]
    collectives = {curve["operation"]: curve for curve in found["collectives"]}
    assert collectives.keys() == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    for curve in [*found["gemm"], *found["memory"], *found["collectives"]]:
        values = [value for point in curve["points"] for value in point.values()]
        assert all(math.isfinite(value) and value >= 0 for value in values)
        assert all(
            point["low_seconds"] <= point["seconds"] <= point["high_seconds"] for point in curve["points"]
        )
    for curve in collectives.values():
        first, last = curve["points"][0], curve["points"][-1]
        assert last["bytes"] > 100 * first["bytes"]
        assert last["seconds"] > first["seconds"] / 10  # other programs can hold up a small one for longer
        assert curve["fit"]["held_out_points"] >= 3
        assert curve["fit"]["median_error"] >= 0
        assert curve["peak_bandwidth"] == max(point["bus_bandwidth"] for point in curve["points"])
    for curve in found["gemm"]:
        # other programs can hold up a small product's threads for longer than a large one takes
        assert curve["points"][-1]["seconds"] > curve["points"][0]["seconds"] / 10


def test_show_prints_what_is_stored(calibrated: tuple[Path, dict[str, Any]], command: Run) -> None:
    home, document = calibrated
    assert command("--home", home, "calibrate", "--show", "--json").document == document
    text = command("--home", home, "calibrate", "--show").out
    for part in (document["fingerprint"]["id"], "all reduce, gloo", "alpha", "GB/s", "fp32", "triad"):
        assert part in text
    checks = command("--home", home, "doctor", "--json").document["checks"]
    assert next(check for check in checks if check["name"] == "calibration")["status"] == "ok"


def test_a_run_tells_percent_of_the_measured_peak(
    calibrated: tuple[Path, dict[str, Any]], command: Run
) -> None:
    home, document = calibrated
    done = command("--home", home, "train", "examples/train.yaml", *TRAIN, "--json")
    assert done.code == 0, done.err
    run = done.document
    assert run["fingerprint"]["id"] == document["fingerprint"]["id"]
    assert run["calibration"]["fingerprint"] == document["fingerprint"]["id"]
    assert run["calibration_reason"] is None
    peaks = {curve["operation"]: curve["peak_bandwidth"] for curve in document["calibration"]["collectives"]}
    rows = [row for row in run["communication"] if row["operation"] in peaks]
    assert rows
    for row in rows:
        assert row["peak_bandwidth"] == peaks[row["operation"]]
        assert row["peak_fraction"] == pytest.approx(row["bus_bandwidth"] / row["peak_bandwidth"])
        assert row["expected_seconds"] > 0
    text = command("--home", home, "show", run["id"]).out
    assert "of peak" in text
    assert "percent of peak:" not in text


def test_a_run_without_a_calibration_says_why(home: Path, command: Run) -> None:
    run = command("train", "examples/train.yaml", *TRAIN, "--json").document
    assert run["calibration"] is None
    assert run["calibration_reason"] == store.NOT_CALIBRATED
    assert run["peak_bandwidth_reason"] == store.NOT_CALIBRATED
    assert all(row["peak_fraction"] is None for row in run["communication"])
    text = command("show", run["id"]).out
    assert text.count("not calibrated: run `workbench calibrate`") == 1


def test_show_without_a_calibration_says_what_to_run(command: Run) -> None:
    done = command("calibrate", "--show")
    assert (done.code, done.out.strip()) == (0, store.NOT_CALIBRATED)
    document = command("calibrate", "--show", "--json").document
    assert (document["state"], document["calibration"]) == ("none", None)


def test_show_names_a_stale_one(home: Path, command: Run) -> None:
    stale = write_stale(home)
    document = command("calibrate", "--show", "--json").document
    assert document["state"] == "stale"
    assert document["changed"] == [f"torch: 1.0.0 -> {fingerprint.this_machine().torch}"]
    assert document["calibration"]["fingerprint"] == stale.fingerprint.id
    assert "is stale (torch: 1.0.0 ->" in command("calibrate", "--show").out


@pytest.mark.parametrize(("options", "words"), [
    (("--ranks", "0"), ("--ranks", "from 1 to")),
    (("--device", "tpu"), ("device", "tpu")),
])  # fmt: skip
def test_bad_input_is_one_line(command: Run, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    command("calibrate", *options).refused(*words)


@pytest.mark.drawn(1, of="commands that end early")
def test_ctrl_c_keeps_what_is_done(home: Path, at_work: subprocess.Popen[str]) -> None:
    at_work.send_signal(signal.SIGINT)
    out, err = at_work.communicate(timeout=30)
    assert at_work.returncode == 1
    assert "finished measurements are kept" in err
    assert "interrupted" in out
    kept = store.find(home, fingerprint.this_machine()).calibration
    assert kept is not None
    assert not kept.complete
    assert kept.curves


@pytest.mark.drawn(1, of="commands that end early")
def test_kill_9_leaves_a_whole_file_and_no_ranks(home: Path, at_work: subprocess.Popen[str]) -> None:
    family = psutil.Process(at_work.pid).children(recursive=True)
    os.kill(at_work.pid, signal.SIGKILL)
    at_work.wait(10)
    kept = store.find(home, fingerprint.this_machine()).calibration
    assert kept is not None
    assert kept.curves
    assert wait_until(lambda: not any(process.is_running() for process in family), 20.0)
