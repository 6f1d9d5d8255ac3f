"""Notes, tags and saved views: what is kept, what is refused, and that two who write at once lose nothing."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from engine.config.errors import InputError
from tests.support.workbench.synthetic import FakeRun, RunFolder, write_home
from workbench.home import notes
from workbench.home.notes import Annotations, annotations_of, change_annotations
from workbench.home.settings import INDEX
from workbench.home.store import Store

RUN = "20260101-000000-aaaa"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder(tmp_path, FakeRun(RUN, {}, 0.1, 8)).write(8)
    return tmp_path / RUN


def test_a_note_and_tags_are_added_changed_and_taken_away(run: Path) -> None:
    assert annotations_of(run) == Annotations()
    assert change_annotations(run, "first\nsecond", ["slow link", "keep"]) == Annotations(
        "first\nsecond", ("keep", "slow link")
    )
    assert change_annotations(run, None, ["keep"], ["slow link"]) == Annotations("first\nsecond", ("keep",))
    assert change_annotations(run, "") == annotations_of(run) == Annotations("", ("keep",))


@pytest.mark.parametrize(
    ("note", "add", "remove", "said"),
    [
        (None, [""], [], "1 to 40 printable characters"),
        (None, ["x" * 41], [], "1 to 40 printable characters"),
        (None, ["a\x1b[31m"], [], "1 to 40 printable characters"),
        (None, ["a,b"], [], "no comma"),
        (None, [f"t{at}" for at in range(21)], [], "at most 20 tags"),
        (None, [], ["other"], "is no tag of 20260101-000000-aaaa; it has keep"),
        ("x" * 4001, [], [], "4,001 characters; at most 4,000"),
        ("a\x1b[31m", [], [], "control characters"),
    ],
)
def test_what_is_refused_changes_nothing(
    run: Path, note: str | None, add: list[str], remove: list[str], said: str
) -> None:
    before = change_annotations(run, "as it was", ["keep"])
    with pytest.raises(InputError, match=said):
        change_annotations(run, note, add, remove)
    assert annotations_of(run) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"note": 1, "tags": "x"}', '{"tags": [1, "keep"]}'])
def test_a_damaged_file_says_as_much_as_it_can(run: Path, text: str) -> None:
    (run / notes.FILE).write_text(text)
    assert set(annotations_of(run).tags) <= {"keep"}
    assert annotations_of(run).note == ""


def _tag(folder: Path, first: int) -> None:
    for number in range(first, first + 5):
        change_annotations(folder, add=[f"t{number}"])


def test_tags_that_several_processes_add_at_once_are_all_kept(run: Path) -> None:
    context = multiprocessing.get_context("spawn")
    several = [context.Process(target=_tag, args=(run, 5 * at)) for at in range(4)]
    for process in several:
        process.start()
    for process in several:
        process.join(60)
    assert len(annotations_of(run).tags) == 20


def test_lists_know_them_as_soon_as_they_change(run: Path) -> None:
    store = Store(run.parent)
    assert (store.runs()[0].note, store.runs()[0].tags) == ("", [])
    change_annotations(run, "look here", ["keep"])
    assert (store.runs()[0].note, store.runs()[0].tags) == ("look here", ["keep"])
    assert Store(run.parent).runs()[0].tags == ["keep"]


def test_an_index_of_the_version_before_is_made_anew(run: Path) -> None:
    change_annotations(run, "look here")
    store = Store(run.parent)
    store.lists()
    index = sqlite3.connect(run.parent / INDEX)
    index.execute("ALTER TABLE runs DROP COLUMN tags")
    index.execute("PRAGMA user_version = 2")
    index.close()
    assert Store(run.parent).runs()[0].note == "look here"


def test_views_are_saved_replaced_and_forgotten(tmp_path: Path) -> None:
    assert notes.saved_views(tmp_path) == []
    notes.save_view(tmp_path, "failed", "Runs", {"outcomes": "oom"})
    notes.save_view(tmp_path, "Best two", "Compare", {"ids": "a,b"})
    notes.save_view(tmp_path, "failed", "Runs", {"outcomes": "oom,hang"})
    assert [(view.name, view.page, view.query) for view in notes.saved_views(tmp_path)] == [
        ("Best two", "Compare", {"ids": "a,b"}),
        ("failed", "Runs", {"outcomes": "oom,hang"}),
    ]
    notes.forget_view(tmp_path, "Best two")
    notes.forget_view(tmp_path, "never there")
    assert [view.name for view in notes.saved_views(tmp_path)] == ["failed"]
    with pytest.raises(InputError, match="printable"):
        notes.save_view(tmp_path, "  ", "Runs", {})
    broken = {"views": [{"name": "a"}, 3, {"name": "b", "page": "Runs", "query": {"n": 1}}]}
    (tmp_path / notes.SAVED_VIEWS).write_text(json.dumps(broken))
    assert [(view.name, view.query) for view in notes.saved_views(tmp_path)] == [("b", {"n": "1"})]


def test_they_go_where_their_study_goes(tmp_path: Path) -> None:
    from workbench.home.transfer.export_study import pack
    from workbench.home.transfer.import_study import unpack

    write_home(tmp_path / "here")
    study = tmp_path / "here" / "studies" / "quickstart"
    change_annotations(study, "the one to show", ["keep"])
    run = next(row for row in Store(tmp_path / "here").runs("quickstart") if row.state == "ended")
    change_annotations(tmp_path / "here" / run.id, "why is it slow?", ["look"])
    pack(tmp_path / "here", "quickstart", tmp_path / "q.zip")
    unpack(tmp_path / "there", tmp_path / "q.zip")
    assert annotations_of(tmp_path / "there" / "studies" / "quickstart") == Annotations(
        "the one to show", ("keep",)
    )
    assert annotations_of(tmp_path / "there" / run.id) == Annotations("why is it slow?", ("look",))
