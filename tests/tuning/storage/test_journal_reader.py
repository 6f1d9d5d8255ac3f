"""A journal that is read as it grows says at every moment what one says that is read as a whole."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.run import run_folder
from tests.support.workbench.synthetic import write_home
from tuning.report.result import result
from tuning.storage import journal, study_folder
from tuning.storage.journal import Journal, JournalReader
from tuning.storage.state import StudyState
from tuning.storage.study_folder import BesideJournal, StudyReader, read_part


def lines(first: int = 0, count: int = 5, value: float = 10.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(first, first + count):
        about = {"at_unix": float(number), "number": number}
        found.append(about | {"kind": "proposal", "config": {"parallel.tp": number}, "source": "sampler"})
        found.append(about | {"kind": "started", "run": f"run-{number}"})
        found.append(
            about | {"kind": "tell", "outcome": "completed", "value": value + number, "samples": [1, 2]}
        )
    return found


def text(found: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in found).encode()


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "journal.jsonl"
    made.write_bytes(text(lines()))
    return made


def test_it_says_the_same_at_every_byte(tmp_path: Path) -> None:
    """However the writer's bytes arrive: in the middle of a line, of a character, with a bad line between."""
    data = (
        text(lines(count=2))
        + b'{"kind": garbage\n'
        + '{"at_unix": 9, "kind": "note", "text": "α"}\n'.encode()
    )
    path = tmp_path / "journal.jsonl"
    path.touch()
    reader = JournalReader(path)
    for place in range(len(data)):
        add(path, data[place : place + 1])
        assert reader.look() == journal.load(path), data[: place + 1][-40:]
    assert reader.look().damage == ("journal.jsonl line 7 cannot be read and is left out",)
    assert reader.look().notes == ("α",)


def test_nothing_new_is_the_very_same_state(path: Path) -> None:
    reader = JournalReader(path)
    before = reader.look()
    assert reader.look() is before
    add(path, b'{"at_unix": 3.0, "kind": "no')
    assert reader.look() is before


def test_only_what_is_new_is_folded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, taken = JournalReader(path), list[dict[str, Any]]()
    reader.look()
    take = StudyState.take
    monkeypatch.setattr(StudyState, "take", lambda self, lines: (taken.extend(lines), take(self, lines))[1])
    add(path, text(lines(5, 1)))
    assert len(reader.look().trials) == 6
    assert [line["kind"] for line in taken] == ["proposal", "started", "tell"]


def test_a_journal_longer_than_a_piece_is_read_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PIECE_BYTES", 7)
    assert JournalReader(path).look() == journal.load(path)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(text(lines(count=9, value=50.0)))
    other.replace(path)


CHANGES = {
    "replaced by a longer one": replaced,
    "written over in place": lambda path: path.write_bytes(text(lines(count=9, value=50.0))),
    "written over with as many bytes": lambda path: path.write_bytes(text(lines(value=20.0))),
    "shortened": lambda path: os.truncate(path, len(text(lines(count=2)))),
    "shortened inside a line": lambda path: os.truncate(path, len(text(lines(count=2))) - 9),
    "emptied": lambda path: os.truncate(path, 0),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_another_one_is_read_anew(path: Path, change: str) -> None:
    reader = JournalReader(path)
    before = reader.look()
    CHANGES[change](path)
    assert reader.look() == journal.load(path) != before
    if path.exists() and "inside" not in change:
        add(path, text(lines(20, 1)))
        assert reader.look() == journal.load(path)


def test_a_journal_that_comes_later_is_found(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "journal.jsonl")
    assert reader.look().trials == ()
    (tmp_path / "journal.jsonl").write_bytes(text(lines()))
    assert len(reader.look().trials) == 5


def test_what_a_new_owner_mends_is_followed(path: Path) -> None:
    reader = JournalReader(path)
    add(path, b'{"at_unix": 6.0, "ki')
    reader.look()
    owner = Journal(path)
    owner.append("note", text="on we go")
    assert reader.look().notes == ("on we go",)
    add(path, b'{"at_unix": 7.0, "kind": "note", "text": "whole"}')  # the owner died before it wrote the end
    assert reader.look().notes == ("on we go", "whole")
    owner.append("note", text="third")
    owner.close()
    assert reader.look() == journal.load(path)
    assert reader.look().notes == ("on we go", "whole", "third")


def test_two_readers_and_a_writer_agree(path: Path) -> None:
    """One reader shared by threads, one of its own, while trials arrive in halves of lines."""
    shared, own = JournalReader(path), JournalReader(path)
    problems: list[str] = []

    def look() -> None:
        seen = 0
        while seen < 60:
            state = shared.look()
            if len(state.trials) < seen or any(
                trial.number != place for place, trial in enumerate(state.trials)
            ):
                problems.append(f"{seen} before, now {[trial.number for trial in state.trials]}")
            seen = len(state.trials)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(5, 60):
        data = text(lines(number, 1))
        add(path, data[: len(data) // 2])
        own.look()
        add(path, data[len(data) // 2 :])
    for thread in threads:
        thread.join(20)
    assert not problems
    assert shared.look() == own.look() == journal.load(path)


def test_a_study_that_is_followed_has_the_document_of_one_that_is_read(tmp_path: Path) -> None:
    write_home(tmp_path)
    folder = tmp_path / "studies" / "quickstart"
    whole = (folder / study_folder.JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / study_folder.JOURNAL).write_bytes(b"")
    reader = StudyReader(folder)
    for line in whole:
        add(folder / study_folder.JOURNAL, line)
        now, before = reader.view(), study_folder.load_study(folder)
        assert (now.file, now.state, now.status) == (before.file, before.state, before.status)
        assert now.file is not None
        assert result(now.journal, now.file, "running") == result(before.journal, now.file, "running")
    assert reader.view().file is reader.view().file
    assert (reader.view().result or {})["importance"] == (study_folder.load_study(folder).result or {})[
        "importance"
    ]


def test_parts_of_a_document_are_as_in_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read_part(path, BesideJournal) == BesideJournal()
    document = {"importance": {"method": "none"}, "prior": None, "trials": [1.5] * 9}
    for odd in (1.5, float("nan")):
        run_folder.write_json(path, document | {"odd": odd})
        assert read_part(path, BesideJournal) == BesideJournal({"method": "none"}, None)
    for text in ("[1, 2]", '{"importance": 1', "null"):
        path.write_text(text)
        assert read_part(path, BesideJournal) == BesideJournal()
