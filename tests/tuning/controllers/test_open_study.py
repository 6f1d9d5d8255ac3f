"""Opening a study reads each line of its journal once, however often the opening looks at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.studies.fake import Machine, run_study, study
from tuning.controllers import open_study
from tuning.spec import study_file
from tuning.spec.terms import as_written
from tuning.storage import journal
from tuning.storage.journal import Journal, JournalReader
from tuning.storage.study_folder import JOURNAL

FILE = study(trials=4, confirm_repeats=1)
BASE = {"train": {"steps": 20, "validate_every": 5}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "studies" / FILE.name


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lines each parsing of a journal had."""
    seen: list[int] = []
    parse = journal.parse

    def counted(data: bytes, name: str, first: int) -> tuple[list[journal.Line], list[str]]:
        lines, damage = parse(data, name, first)
        seen.append(len(lines))
        return lines, damage

    monkeypatch.setattr(journal, "parse", counted)
    return seen


def lines_of(folder: Path) -> int:
    return (folder / JOURNAL).read_bytes().count(b"\n")


def test_a_study_that_goes_on_is_read_once(folder: Path, parsed: list[int]) -> None:
    run_study(FILE, folder, Machine())
    known = lines_of(folder)
    parsed.clear()
    opening = open_study.begin(folder, FILE, None)
    kept = open_study.keep(opening, join=False)
    assert sum(parsed) == known > 20
    assert kept.journal.state.trials == journal.load(folder / JOURNAL).trials
    kept.close()


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("tokens_per_second", {"loss_at_seconds": 10}, "tokens_per_second before, now {loss_at_seconds: 10}"),
        ({"loss_at_seconds": 10}, {"loss_at_seconds": 2.5}, "{loss_at_seconds: 10} before, now {loss_at_seconds: 2.5}"),
        ({"time_to_loss": 3}, "tokens_per_second", "{time_to_loss: 3} before, now tokens_per_second"),
        ("mfu", ["mfu", {"time_to_loss": 2.123456789}], "mfu before, now [mfu, {time_to_loss: 2.123456789}]"),
    ],
    ids=str,
)  # fmt: skip
def test_another_objective_is_told_as_somebody_wrote_it(
    folder: Path, before: Any, now: Any, said: str
) -> None:
    """Not by base.train.seconds, which follows from it, nor by a setting that was searched because of it."""
    first, second = (
        study_file.parse({"name": FILE.name, "ranks": 2, "base": BASE, "objective": one})
        for one in (before, now)
    )
    folder.mkdir(parents=True)
    opened = Journal(folder / JOURNAL)
    open_study.begin_journal(opened, folder, first)
    opened.close()
    assert open_study.begin(folder, first, None).file.identity() == first.identity()
    with pytest.raises(InputError) as refused:
        open_study.begin(folder, second, None)
    words = f"a study with this name asks another question: objective ({said}); choose another name"
    assert str(refused.value) == f"name={FILE.name!r}: {words}"


def test_objectives_with_another_one_that_decides_are_another_question() -> None:
    both = ["tokens_per_second", "peak_memory_bytes"]
    one, other = (as_written(study(objective=both, prefer=name).identity())["objective"] for name in both)
    assert one == "[tokens_per_second, peak_memory_bytes]"
    assert other == f"{one}, prefer peak_memory_bytes"


def test_what_came_between_two_looks_is_read_alone(folder: Path, parsed: list[int]) -> None:
    run_study(FILE, folder, Machine())
    opening = open_study.begin(folder, FILE, None)
    other = Journal(folder / JOURNAL)
    other.append("note", text="from another controller")
    other.close()
    parsed.clear()
    kept = open_study.keep(opening, join=False)
    assert sum(parsed) == 1
    assert kept.journal.state.notes[-1] == "from another controller"
    kept.close()


@pytest.mark.parametrize("half", [b'{"kind": "no', b'{"at_unix": 1.0, "kind": "note", "text": "whole"}'])
def test_a_last_line_without_its_end_is_mended_all_the_same(folder: Path, half: bytes) -> None:
    """A controller was killed while it wrote: the next line begins on its own, and a whole one is not lost."""
    run_study(FILE, folder, Machine())
    with (folder / JOURNAL).open("ab") as file:
        file.write(half)
    reader = JournalReader(folder / JOURNAL)
    reader.look()
    opened = Journal(folder / JOURNAL, reader)
    opened.append("note", text="after")
    opened.close()
    state = journal.load(folder / JOURNAL)
    assert state.damage == ()
    assert list(state.notes[-2:]) == (
        ["whole", "after"] if half.endswith(b"}") else [*state.notes[-2:-1], "after"]
    )


def test_a_journal_that_was_replaced_is_read_anew(folder: Path) -> None:
    run_study(FILE, folder, Machine())
    reader = JournalReader(folder / JOURNAL)
    before = reader.look()
    text = (folder / JOURNAL).read_bytes()
    (folder / JOURNAL).unlink()
    (folder / JOURNAL).write_bytes(b"".join(text.splitlines(keepends=True)[:3]))
    opened = Journal(folder / JOURNAL, reader)
    assert len(opened.state.trials) < len(before.trials)
    assert opened.state.trials == journal.load(folder / JOURNAL).trials
    opened.close()
