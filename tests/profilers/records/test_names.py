"""The table of names, written and read."""

from pathlib import Path

import numpy as np
import pytest

from profilers.records import names
from profilers.records.append_file import pack_frame
from profilers.records.names import Names, NameTable, read_names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.names"


def test_a_name_keeps_its_id_and_is_in_the_file_at_once(path: Path) -> None:
    table = NameTable(path)
    assert [table["dp"], table["tp"], table["dp"]] == [0, 1, 0]
    assert read_names(path) == ({0: "dp", 1: "tp"}, [])


def test_a_second_writer_continues_the_table(path: Path) -> None:
    first = NameTable(path)
    assert (first["dp"], first["tp"]) == (0, 1)
    second = NameTable(path)
    assert (second["tp"], second["größer"]) == (1, 2)
    assert read_names(path)[0] == {0: "dp", 1: "tp", 2: "größer"}


def test_a_name_that_cannot_be_written_gets_no_id(tmp_path: Path) -> None:
    table = NameTable(tmp_path / "missing" / "rank-0.names")
    with pytest.raises(FileNotFoundError):
        table["dp"]
    (tmp_path / "missing").mkdir()
    assert table["dp"] == 0


def test_names_beyond_the_last_id_share_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LAST_ID", 2)
    table = NameTable(path)
    assert [table[name] for name in ("a", "b", "c", "d", "a")] == [0, 1, 2, 2, 0]
    assert read_names(path)[0][2] == names.OVERFLOW_NAME
    assert NameTable(path)["e"] == 2


def test_reader_looks_again_when_an_id_is_new(path: Path) -> None:
    table, reader = NameTable(path), Names(path)
    assert table["dp"] == 0
    assert reader.lookup(np.array([0, 0], np.uint16)) == {0: "dp"}
    assert table["tp"] == 1
    assert reader.lookup(np.array([0, 1, 5], np.uint16)) == {0: "dp", 1: "tp"}


def test_damage_is_reported_and_costs_only_the_damaged_names(path: Path) -> None:
    table = NameTable(path)
    assert [table[name] for name in ("dp", "tp", "pp")] == [0, 1, 2]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content + pack_frame(b"\x93\x01\x02\x03"))
    found, problems = read_names(path)
    assert found == {0: "dp", 2: "pp"}
    assert len(problems) == 2


def test_no_file_is_a_problem_and_no_error(path: Path) -> None:
    assert read_names(path) == ({}, ["rank-0.names: No such file or directory"])
