"""Calibrations without ranks: the fit and its error, fingerprints, files, and which one a run refers to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.config.errors import InputError
from engine.lifecycle import network_of
from engine.run.calibration import fingerprint, store
from engine.run.calibration.fit import fit
from engine.run.calibration.table import Calibration, Point
from engine.run.run_folder import RunStatus
from profilers.gpu.nvml import Nvml
from tests.support.engine.calibrations import (
    ALPHA_SECONDS,
    BYTES_PER_SECOND,
    SIZES,
    calibration,
    collective,
    point,
    write_stale,
)
from tests.support.gpu.fake_nvml import FakeNvml

ROOT = Path(__file__).parents[4]


def points_of(seconds: Callable[[int], float], noise: float = 0.0, seed: int = 0) -> list[Point]:
    factors = np.random.default_rng(seed).lognormal(0.0, noise, len(SIZES)).tolist()
    pairs = enumerate(zip(SIZES, factors, strict=True))
    return [point(size, seconds(size) * factor, number % 2 == 1) for number, (size, factor) in pairs]


def line(size: int) -> float:
    return ALPHA_SECONDS + size / BYTES_PER_SECOND


def switching(size: int) -> float:
    """As by exchange up to 32 KiB, then around a ring."""
    return 20e-6 + size / 1e9 if size <= 2**15 else 150e-6 + size / 3e9


def test_an_exact_line_is_found_exactly() -> None:
    found = fit(points_of(line))
    assert found is not None
    (segment,) = found.segments
    assert segment.alpha_seconds == pytest.approx(ALPHA_SECONDS)
    assert segment.bytes_per_second == pytest.approx(BYTES_PER_SECOND)
    assert (found.median_error, found.largest_error) == (pytest.approx(0.0, abs=1e-9),) * 2
    assert found.held_out_points == len(SIZES) // 2


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_one_wild_point_move_it_little(seed: int) -> None:
    points = points_of(line, 0.03, seed)
    points[6] = replace(points[6], seconds=3 * points[6].seconds)
    found = fit(points)
    assert found is not None
    (segment,) = found.segments
    assert segment.alpha_seconds == pytest.approx(ALPHA_SECONDS, rel=0.1)
    assert segment.bytes_per_second == pytest.approx(BYTES_PER_SECOND, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_algorithm_is_a_second_segment(seed: int) -> None:
    found = fit(points_of(switching, 0.02, seed))
    assert found is not None
    small, large = found.segments
    assert small.alpha_seconds == pytest.approx(20e-6, rel=0.1)
    assert small.up_to_bytes == 2**15
    assert large.alpha_seconds == pytest.approx(150e-6, rel=0.15)
    assert large.bytes_per_second == pytest.approx(3e9, rel=0.1)
    assert found.median_error is not None
    assert found.median_error < 0.06


def test_the_error_is_that_of_sizes_that_the_fit_did_not_see() -> None:
    points = points_of(line)
    slower = [replace(each, seconds=each.seconds * 1.25) if each.held_out else each for each in points]
    found = fit(slower)
    assert found is not None
    assert found.segments == fit(points).segments  # type: ignore[union-attr]
    assert found.median_error == pytest.approx(0.2)
    assert found.largest_error == pytest.approx(0.2)


def test_a_fit_without_held_out_sizes_has_no_error() -> None:
    found = fit([each for each in points_of(line) if not each.held_out])
    assert found is not None
    assert (found.median_error, found.largest_error, found.held_out_points) == (None, None, 0)


def test_one_point_is_no_line_and_falling_times_have_no_bandwidth() -> None:
    assert fit(points_of(line)[:1]) is None
    falling = fit([point(size, 1e-3 - 1e-12 * size) for size in SIZES])
    assert falling is not None
    assert {segment.bytes_per_second for segment in falling.segments} == {None}
    steep = fit([point(size, 1e-9 * size**1.05) for size in SIZES])
    assert steep is not None
    assert all(segment.alpha_seconds >= 0 for segment in steep.segments)


def test_the_peak_is_the_best_bus_bandwidth() -> None:
    found = collective("all_gather", 4)
    assert found.peak == pytest.approx(0.75 * SIZES[-1] / (ALPHA_SECONDS + SIZES[-1] / BYTES_PER_SECOND))


def test_a_fingerprint_is_stable_and_tells_what_changed() -> None:
    here = fingerprint.this_machine()
    assert fingerprint.this_machine() == here
    assert here.id == fingerprint.this_machine().id == here.as_dict()["id"]
    assert here.cores >= 1
    assert here.torch
    other = replace(here, torch="1.0.0", governor="powersave")
    assert other.id != here.id
    assert here.differences(other) == [
        f"torch: {here.torch} -> 1.0.0",
        f"governor: {here.governor or 'unknown'} -> powersave",
    ]


def test_variables_of_threads_and_backends_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.this_machine()
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert fingerprint.this_machine() == before
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS=3" in fingerprint.this_machine().variables


def test_gpus_are_named_with_what_their_speed_depends_on() -> None:
    gpu = fingerprint._gpu(Nvml(FakeNvml()), 0)
    assert gpu.startswith("NVIDIA H100 80GB HBM3, 79.6 GiB, SM clock up to 1,980 MHz")
    assert gpu.endswith("limited to 700 W")


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    made = calibration((2, 4))
    path = store.save(tmp_path, made)
    assert path == tmp_path / "calibrations" / f"{made.fingerprint.id}.json"
    assert store.load(path) == made
    assert store.find(tmp_path, made.fingerprint) == store.CalibrationLookup(made)


def test_a_curve_measured_again_replaces_the_older_one_only(tmp_path: Path) -> None:
    made = calibration((2,))
    store.save(tmp_path, made)
    again = replace(collective("all_reduce", 2), measured_unix=2.0e9)
    store.save(tmp_path, replace(made, complete=False, curves=(again, collective("all_reduce", 4))))
    found = store.find(tmp_path, made.fingerprint).calibration
    assert found is not None
    assert len(found.curves) == len(made.curves) + 1
    times = {curve.key: curve.measured_unix for curve in found.curves}
    assert times["collective", "all_reduce", 2, "cpu"] == 2.0e9
    assert times["collective", "all_gather", 2, "cpu"] == 1.0e9


def test_without_one_it_says_what_to_run(tmp_path: Path) -> None:
    found = store.find(tmp_path, fingerprint.this_machine())
    assert (found.calibration, found.reason) == (None, "not calibrated: run `workbench calibrate`")


def test_a_stale_one_is_named_with_what_changed(tmp_path: Path) -> None:
    stale = write_stale(tmp_path)
    found = store.find(tmp_path, fingerprint.this_machine())
    assert (found.calibration, found.stale) == (None, stale)
    assert found.reason is not None
    assert f"stale (torch: 1.0.0 -> {fingerprint.this_machine().torch})" in found.reason
    store.save(tmp_path, calibration())
    assert store.find(tmp_path, fingerprint.this_machine()).calibration is not None


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', '{"format": 99}', "[]"])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    path = store.save(tmp_path, calibration())
    path.write_text(text)
    assert store.load(path) is None
    assert store.find(tmp_path, fingerprint.this_machine()).reason == store.NOT_CALIBRATED


def test_a_home_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="home"):
        store.save(tmp_path / "file", calibration())


def test_a_status_refers_to_what_held_then(tmp_path: Path) -> None:
    here = fingerprint.this_machine()
    before = store.reference(tmp_path, here)
    assert before["fingerprint"]["id"] == here.id
    assert (before["calibration"], before["calibration_reason"]) == (None, store.NOT_CALIBRATED)
    store.save(tmp_path, calibration())
    status = RunStatus.from_dict(json.loads(msgspec.json.encode(store.reference(tmp_path, here))))
    assert store.calibration_of_run(tmp_path, status).calibration == calibration()
    assert store.calibration_of_run(tmp_path, RunStatus.from_dict(before)).reason == store.NOT_CALIBRATED
    assert store.calibration_of_run(tmp_path, RunStatus()) == store.UNKNOWN
    store.path_of(tmp_path, here.id).unlink()
    assert "is gone" in str(store.calibration_of_run(tmp_path, status).reason)


def test_links_of_a_lab_are_not_this_machines(tmp_path: Path) -> None:
    from engine.config.sections import Lab

    store.save(tmp_path, calibration())
    network = network_of(Lab(hosts=2, rate_mbit=100))
    found = store.find(tmp_path, fingerprint.this_machine(network))
    assert found.calibration is None
    assert "a lab of 2 hosts, links of 100 Mbit/s" in str(found.reason)
    assert network_of(Lab()) is None


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        Calibration.from_dict(calibration().as_dict() | {"format": 99})


SAVE_FOREVER = """
import sys
from pathlib import Path
from engine.run.calibration import store
from tests.support.engine.calibrations import calibration
made = calibration((2, 4))
while True:
    store.save(Path(sys.argv[1]), made)
    print("saved", flush=True)
"""


def test_kill_9_in_the_middle_of_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    made = calibration((2, 4))
    for kept in range(1, 4):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(kept):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        assert store.find(tmp_path, made.fingerprint).calibration == made
