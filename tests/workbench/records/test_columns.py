"""Columns that grow, and columns of several ranks brought together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profilers.records.reader import Tail
from profilers.records.writer import RecordWriter
from tests.support.samples import gpu_sample, step_sample
from workbench.records.columns import Stream, common_steps, means_by_step, pick_columns, rows_of


def test_what_was_seen_stays_while_the_file_grows(tmp_path: Path) -> None:
    stream = Stream(Tail(tmp_path / "rank-0.step"))
    seen = [stream.refresh()]
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(20):
            writer.write(step_sample(step, loss=None if step % 2 else 1.0))
            seen.append(stream.refresh())
            if step % 5 == 0:
                assert seen[-1]["step"].tolist() == list(range(step + 1))
    assert [columns["step"].tolist() for columns in seen] == [list(range(count)) for count in range(21)]
    assert np.isnan(seen[20]["loss"]).tolist() == [False, True] * 10
    assert len(seen[3]["loss"]) == 3


def test_whole_numbers_become_floats_when_one_is_absent(tmp_path: Path) -> None:
    stream = Stream(Tail(tmp_path / "launcher.gpu"))
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.write(gpu_sample(0, memory_used_bytes=5))
        first = stream.refresh()
        assert first["memory_used_bytes"].tolist() == [5]
        writer.write(gpu_sample(1))
        second = stream.refresh()["memory_used_bytes"]
    assert (second[0], np.isnan(second[1]), second.dtype) == (5.0, True, np.float64)
    assert first["memory_used_bytes"].tolist() == [5]


def test_an_unknown_column_is_a_key_error(tmp_path: Path) -> None:
    columns = Stream(Tail(tmp_path / "rank-0.step")).refresh()
    assert "colour" not in columns
    with pytest.raises(KeyError):
        columns["colour"]


@pytest.mark.parametrize(
    ("ranks", "common"),
    [
        ([[0, 1, 2], [1, 2, 3]], [1, 2]),
        ([[0, 1, 2, 3], [0, 2, 3]], [0, 2, 3]),
        ([[5, 6], [0, 1]], []),
        ([[1, 2], []], []),
        ([], []),
    ],
)
def test_common_steps(ranks: list[list[int]], common: list[int]) -> None:
    assert common_steps([np.array(steps, dtype=np.int64) for steps in ranks]).tolist() == common


def test_each_value_is_that_of_the_picked_rank() -> None:
    ranks = [
        {"step": np.array([0, 1, 2, 3]), "loss": np.array([1, 2, 3, 4])},
        {"step": np.array([1, 3]), "loss": np.array([20.5, 40.5])},
    ]
    picked = pick_columns(ranks, np.array([1, 3]), np.array([0, 1]))
    assert picked["loss"].tolist() == [2.0, 40.5]
    assert (list(picked), picked["step"].tolist()) == (["step", "loss"], [1, 3])
    assert isinstance(rows_of(ranks[1]["step"], np.array([1, 3])), slice)


@pytest.mark.parametrize("scale", [1, 1000])
def test_means_by_step_with_and_without_gaps(scale: int) -> None:
    steps, means = means_by_step(np.array([2, 1, 2, 4]) * scale, np.array([1.0, 5.0, 3.0, 7.0]))
    assert (steps.tolist(), means.tolist()) == ([1 * scale, 2 * scale, 4 * scale], [5.0, 2.0, 7.0])
