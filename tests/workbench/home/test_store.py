"""The index is never the truth: whatever happens to it, the lists are those of the folders."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from tests.workbench.conftest import Furnished, Run
from workbench.home import store
from workbench.home.settings import INDEX
from workbench.home.store import Store


def lists(home: Path) -> tuple[list[store.RunRow], list[store.StudyRow]]:
    found = Store(home)
    return found.runs(), found.studies()


def test_a_second_look_reads_only_what_changed(own_home: Furnished, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lists(own_home.home)
    read: list[str] = []
    counted = store.Table("runs", "id", store.RunRow, lambda folder: read.append(folder.name) or store.run_row(folder),
                          store.RUNS.files)  # fmt: skip
    monkeypatch.setattr(store, "RUNS", counted)
    assert lists(own_home.home) == before
    assert read == []
    run_folder.update_status(own_home.home / own_home.live, backend="nccl")
    assert next(row for row in lists(own_home.home)[0] if row.id == own_home.live).backend == "nccl"
    assert read == [own_home.live]


def test_what_was_deleted_leaves_the_lists(own_home: Furnished) -> None:
    runs = Store(own_home.home).runs()
    shutil.rmtree(own_home.home / runs[-1].id)
    assert [row.id for row in Store(own_home.home).runs()] == [row.id for row in runs[:-1]]


def test_reindex_gives_what_looking_gave(command: Run, own_home: Furnished) -> None:
    before = lists(own_home.home)
    document = command("reindex", "--json").document
    assert (document["runs"], document["studies"]) == (11, 1)
    assert lists(own_home.home) == before
    database = own_home.home / "studies" / "quickstart" / "optuna.db"
    with sqlite3.connect(database) as index:
        assert index.execute("SELECT count(*) FROM trials").fetchone()[0] >= 7
    index.close()


BROKEN = {
    "no database": b"this is not a database" * 100,
    "empty": b"",
    "cut off": None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_index_is_set_aside_and_made_anew(name: str, own_home: Furnished) -> None:
    before = lists(own_home.home)
    index = own_home.home / INDEX
    index.write_bytes(index.read_bytes()[:5000] if BROKEN[name] is None else BROKEN[name] or b"")
    found = Store(own_home.home)
    assert (found.runs(), found.studies()) == before
    assert lists(own_home.home) == before
    aside = list(own_home.home.glob(f"{INDEX}.broken-*"))
    assert len(aside) == (name != "empty")


def test_an_older_index_is_made_anew(own_home: Furnished) -> None:
    before = lists(own_home.home)
    with sqlite3.connect(own_home.home / INDEX) as index:
        index.execute("DROP TABLE runs")
        index.execute("CREATE TABLE runs (id, signature)")
        index.execute("PRAGMA user_version = 0")
    index.close()
    assert lists(own_home.home) == before


def test_an_index_that_others_hold_does_not_matter(
    own_home: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOCK_SECONDS", 0.05)
    before = lists(own_home.home)
    other = sqlite3.connect(own_home.home / INDEX)
    try:
        other.execute("BEGIN EXCLUSIVE")
        run_folder.update_status(own_home.home / own_home.live, backend="nccl")
        found = Store(own_home.home)
        assert [row.id for row in found.runs()] == [row.id for row in before[0]]
        assert "locked" in (found.note or "")
    finally:
        other.close()


def test_an_index_in_whose_place_there_is_a_folder(own_home: Furnished, command: Run) -> None:
    before = lists(own_home.home)
    (own_home.home / INDEX).unlink()
    (own_home.home / INDEX).mkdir()
    assert lists(own_home.home) == before
    assert "note: " in command("ls").err


def test_many_readers_at_once(own_home: Furnished) -> None:
    expected = {row.id for row in Store(own_home.home).runs()}
    (own_home.home / INDEX).unlink()
    wrong: list[object] = []

    def look() -> None:
        try:
            for _ in range(5):
                found = {row.id for row in Store(own_home.home).runs()}
                wrong.extend([found] if found != expected else [])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Watched:
    """The first index that is opened, with something done before each of its statements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
        self._before, self._connect = before, sqlite3.connect
        self._opened = False
        self.problems: list[Exception] = []
        monkeypatch.setattr(sqlite3, "connect", self._open)

    def _open(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        index: sqlite3.Connection = self._connect(*arguments, **options)
        if not self._opened:
            self._opened = True
            index.set_trace_callback(self._statement)
        return index

    def _statement(self, text: str) -> None:
        try:  # the caller would swallow it
            self._before(text)
        except Exception as error:
            self.problems.append(error)


def ids_in(index: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(index, timeout=0)) as other:
        return {key for (key,) in other.execute("SELECT id FROM runs")}


@pytest.mark.parametrize("rebuilt", [False, True])
def test_one_that_comes_late_to_make_the_index_leaves_it_whole(
    rebuilt: bool, own_home: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {row.id for row in Store(own_home.home).runs()}
    (own_home.home / INDEX).unlink()
    looks: list[set[str]] = []

    def before(statement: str) -> None:
        if looks:
            looks.append(ids_in(own_home.home / INDEX))
        elif statement.startswith("BEGIN"):  # it has seen that there is no index yet
            looks.append({row.id for row in Store(own_home.home).runs()})

    watched = Watched(monkeypatch, before)
    late = Store(own_home.home)
    if rebuilt:
        assert late.rebuild()[0] == len(expected)
    assert {row.id for row in late.runs()} == expected
    assert watched.problems == []
    assert len(looks) > 5
    assert looks == [expected] * len(looks)


def test_a_run_that_begins_while_another_reader_looks_is_not_lost(
    own_home: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Store(own_home.home).runs()
    begun = own_home.home / "20990101-000000-abcd"
    seen: list[set[str]] = []

    def before(statement: str) -> None:
        if not seen and "signature FROM runs" in statement:  # it has listed the folders
            shutil.copytree(own_home.home / runs[0].id, begun)
            seen.append({row.id for row in Store(own_home.home).runs()})

    watched = Watched(monkeypatch, before)
    expected = {row.id for row in runs} | {begun.name}
    assert {row.id for row in Store(own_home.home).runs()} == expected
    assert (seen, watched.problems) == ([expected], [])


def test_what_is_no_run_is_left_out(own_home: Furnished) -> None:
    before = lists(own_home.home)
    (own_home.home / "notes").mkdir()
    (own_home.home / "20260101-000000-0000").mkdir()
    (own_home.home / "readme.txt").write_text("mine")
    assert lists(own_home.home) == before
