"""Energy between two times from sampled counters."""

from pathlib import Path

import pytest

from profilers.analysis import machine as energy
from profilers.records.reader import Tail
from profilers.records.table import Table
from profilers.records.writer import RecordWriter
from tests.support.samples import gpu_sample


def table(folder: Path, *readings: tuple[int, float, float | None]) -> Table:
    """Readings as (gpu, time, joules)."""
    with RecordWriter(folder, "launcher") as writer:
        for gpu, at, energy in readings:
            writer.write(gpu_sample(gpu, time_unix=at, energy_joules=energy))
    return Tail(folder / "launcher.gpu").read_new()


def joules(samples: Table, start: float, end: float) -> float | None:
    return energy.joules([(samples, gpu) for gpu in energy.gpus(samples)], start, end)


def test_energy_of_the_span_only(tmp_path: Path) -> None:
    readings = [(0, 0.0, 0.0), (0, 10.0, 100.0), (0, 20.0, 1100.0), (0, 30.0, 1200.0)]
    assert joules(table(tmp_path, *readings), 10.0, 20.0) == pytest.approx(1000.0)
    assert joules(table(tmp_path), 15.0, 25.0) == pytest.approx(550.0)


def test_gpus_add_up(tmp_path: Path) -> None:
    readings = [(0, 0.0, 0.0), (1, 0.0, 50.0), (0, 10.0, 100.0), (1, 10.0, 450.0)]
    assert joules(table(tmp_path, *readings), 0.0, 10.0) == pytest.approx(500.0)


def test_a_span_longer_than_the_samples_has_their_mean_power(tmp_path: Path) -> None:
    assert joules(table(tmp_path, (0, 2.0, 0.0), (0, 4.0, 20.0)), 0.0, 10.0) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [(0, 0.0, 5.0)],
        [(0, 0.0, None), (0, 9.0, None)],
        [(0, 0.0, 0.0), (0, 9.0, 9.0), (1, 0.0, None), (1, 9.0, None)],
        [(0, 0.0, 900.0), (0, 9.0, 5.0)],
        [(0, 50.0, 1.0), (0, 60.0, 2.0)],
    ],
)
def test_what_cannot_be_told_is_none(tmp_path: Path, readings: list[tuple[int, float, float | None]]) -> None:
    assert joules(table(tmp_path, *readings), 0.0, 10.0) is None
