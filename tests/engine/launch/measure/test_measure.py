"""Measuring: what is planned, how often a size is timed, and real ranks that answer, fail and die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engine.config.errors import InputError, RankError
from engine.launch.measure import plan as plans
from engine.launch.measure.calibrate import CalibrationRequest, Ranks, calibrate
from engine.launch.measure.plan import CurvePlan, Machine, Size, StoppedError, group_sizes, measure, plan
from engine.launch.measure.rank import Cell
from engine.run.calibration import store
from profilers.records.operations import calibrated_operations

SIZES = tuple(Size(2**power, power % 2 == 1) for power in range(8, 20))
GIB = 2**30


def curve_plan(seconds: float) -> CurvePlan:
    return CurvePlan("collective", "all_reduce", 2, 1, SIZES, seconds)


@pytest.mark.parametrize(("ranks", "sizes"), [(1, []), (2, [2]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_groups_are_powers_of_two_and_the_whole(ranks: int, sizes: list[int]) -> None:
    assert group_sizes(ranks) == sizes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_a_plan_has_everything_within_its_time(device: str, quick: bool) -> None:
    drawn = plan(Machine(4, device, 8, 16 * GIB), quick)
    assert sum(curve.seconds for curve in drawn) == pytest.approx(8.0 if quick else 45.0)
    assert len({(curve.kind, curve.name, curve.ranks) for curve in drawn}) == len(drawn)
    named = {(curve.name, curve.ranks) for curve in drawn if curve.kind == "collective"}
    whole = {(name, ranks) for name in calibrated_operations() for ranks in (2, 4)} - {("send", 4)}
    assert named == whole
    assert {curve.name for curve in drawn if curve.kind == "gemm"} >= {"fp32", "bf16"}
    assert any(curve.kind == "transfer" for curve in drawn) == (device == "cuda")
    assert all(curve.threads == 8 // curve.ranks for curve in drawn)


def test_every_rank_has_an_equal_part_of_every_payload() -> None:
    for curve in plan(Machine(6, "cpu", 6, GIB), quick=False):
        if curve.kind == "collective":
            assert all(size.value % (4 * curve.ranks) == 0 for size in curve.sizes)
            assert {size.held_out for size in curve.sizes} == {False, True}


def test_arrays_fit_in_memory() -> None:
    for curve in plan(Machine(8, "cpu", 8, GIB), quick=False):
        if curve.kind == "memory":
            arrays = {"copy": 2, "triad": 3}[curve.name]
            assert curve.sizes[-1].value * arrays * curve.ranks <= GIB


def test_each_size_is_timed_in_several_windows() -> None:
    asked: list[tuple[int, int]] = []

    def timed(size: int, calls: int) -> float:
        asked.append((size, calls))
        return size * 1e-9

    points = measure(curve_plan(0.02), timed, lambda: False)
    assert [point.size for point in points] == [size.value for size in SIZES]
    assert [point.held_out for point in points] == [size.held_out for size in SIZES]
    assert all(point.seconds == point.size * 1e-9 and point.windows >= 3 for point in points)
    most = {size: max(calls for other, calls in asked if other == size) for size, _ in asked}
    assert most[2**8] > most[2**18]


def test_sizes_that_take_too_long_are_left_out() -> None:
    points = measure(curve_plan(0.05), lambda size, _: size * 1e-6, lambda: False)
    assert [point.size for point in points] == [2**power for power in range(8, 13)]


def test_a_stop_ends_a_curve_at_once() -> None:
    asked: list[int] = []

    def timed(size: int, calls: int) -> float:
        asked.append(size)
        return 1e-6

    with pytest.raises(StoppedError):
        measure(curve_plan(10.0), timed, lambda: len(asked) >= 30)
    assert len(asked) == 30


@pytest.mark.parametrize("ranks", [0, -1, 65])
def test_a_number_of_ranks_that_cannot_be(tmp_path: Path, ranks: int) -> None:
    with pytest.raises(InputError, match="--ranks"):
        calibrate(tmp_path, CalibrationRequest(ranks), lambda: False, lambda _: None)


def cell(size: int, name: str = "all_reduce") -> Cell:
    return Cell("collective", name, 2, 1, size, 2)


def test_a_dead_rank_is_named_and_the_others_end() -> None:
    with Ranks(2, "cpu", "gloo", [2]) as ranks:
        assert ranks.seconds(cell(1024)) > 0
        processes = [worker.process for worker in ranks._workers]
        os.kill(processes[1].pid or 0, signal.SIGKILL)
        with pytest.raises(RankError, match="rank"):
            ranks.seconds(cell(1024))
    assert not any(process.is_alive() for process in processes)


def test_what_goes_wrong_in_a_rank_is_told() -> None:
    with Ranks(2, "cpu", "gloo", [2]) as ranks, pytest.raises(RankError, match="KeyError: 'gossip'"):
        ranks.seconds(cell(1024, "gossip"))


def test_a_calibration_of_three_ranks_and_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plans._SECONDS, True, 2.0)
    labels: list[str] = []
    done = calibrate(
        tmp_path, CalibrationRequest(3, True, "cpu"), lambda: False, lambda p: labels.append(p.label)
    )
    assert done.complete
    assert labels[0] == "starting ranks"
    assert len(labels) == len(done.curves) + 1
    links = done.links("gloo")
    assert links.keys() == {(name, size) for name in calibrated_operations() for size in (2, 3)} - {
        ("send", 3)
    }
    path = store.path_of(tmp_path, done.fingerprint.id)
    assert store.load(path) == done
    seen: list[int] = []
    stopped = calibrate(
        tmp_path,
        CalibrationRequest(1, True, "cpu"),
        lambda: bool(seen),
        lambda p: seen.extend([1] * (p.done > 0)),
    )
    assert not stopped.complete
    assert len(stopped.curves) == 1
    kept = store.load(path)
    assert kept is not None
    assert {curve.key for curve in kept.curves} >= {curve.key for curve in done.curves}
