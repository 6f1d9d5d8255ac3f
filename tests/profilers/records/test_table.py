"""Columns, rows and what is masked in them."""

import math
from pathlib import Path

import numpy as np
import pytest

from profilers.records.reader import Tail
from profilers.records.schema import FixedRecord, GpuSample
from profilers.records.table import Table
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, gpu_sample, step_sample


def written(folder: Path, *records: FixedRecord) -> Table:
    with RecordWriter(folder, "rank-0") as writer:
        for record in records:
            writer.write(record)
    return Tail(next(path for path in folder.iterdir() if path.suffix != ".names")).read_new()


def test_columns_have_their_types(tmp_path: Path) -> None:
    table = written(tmp_path, step_sample(4), step_sample(5, measured=False))
    assert table.column("step").dtype == np.int64
    assert table.column("step_seconds").dtype == np.float64
    assert table.column("measured").tolist() == [True, False]
    assert table.column("measured").dtype == np.bool_


def test_absent_and_not_finite_values_are_masked(tmp_path: Path) -> None:
    losses = [1.0, None, math.nan, math.inf]
    table = written(tmp_path, *(step_sample(loss=loss) for loss in losses))
    assert table.column("loss").tolist() == [1.0, None, None, None]
    assert table.column("loss").mean() == 1.0


def test_a_reading_that_is_not_finite_is_masked_even_where_required(tmp_path: Path) -> None:
    assert written(tmp_path, step_sample(step_seconds=math.nan)).column("step_seconds").tolist() == [None]


def test_strings_and_their_codes(tmp_path: Path) -> None:
    table = written(tmp_path, *(comm_sample(axis=axis) for axis in ("dp", "tp", "dp")))
    axes = table.column("axis")
    assert axes.tolist() == ["dp", "tp", "dp"]
    assert (axes == "dp").tolist() == [True, False, True]
    codes, names = table.codes("axis")
    assert [names[code] for code in codes.tolist()] == ["dp", "tp", "dp"]


def test_names_that_the_table_of_names_lacks_are_masked(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(comm_sample())
    (tmp_path / "rank-0.names").unlink()
    tail = Tail(tmp_path / "rank-0.comm")
    table = tail.read_new()
    assert table.column("operation").tolist() == [None]
    assert table.column("bytes").tolist() == [1000]
    assert tail.problems == ["rank-0.names: No such file or directory"]


def test_rows_are_the_records(tmp_path: Path) -> None:
    records = [gpu_sample(1, power_watts=250.5), gpu_sample(2, throttle_reasons=4)]
    assert written(tmp_path, *records).rows() == records


def test_an_empty_table_has_all_columns(tmp_path: Path) -> None:
    table = Tail(tmp_path / "launcher.gpu").read_new()
    assert len(table) == 0
    assert table.rows() == []
    assert all(len(table.column(name)) == 0 for name in GpuSample.__dataclass_fields__)


def test_a_field_that_nobody_knows_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="colour"):
        Tail(tmp_path / "launcher.gpu").read_new().column("colour")
