"""Which parts of `make compat` run again."""

from pathlib import Path

import pytest

from tests import compat


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One release line that passed in part, and another at an older commit."""
    monkeypatch.setattr(compat, "RESULTS", tmp_path / "results" / "compat.md")
    monkeypatch.setattr(compat, "commit", lambda: "now")
    rows = [row("2.1.0", "a", "passed", "now"), row("2.1.0", "b", "failed", "now")]
    rows += [row("2.11.0+cu130", "a", "passed", "old")]
    compat.write(rows, [f"{compat._skipping(row)}[1] tests/test_x.py:1: no GPU" for row in rows])


def row(torch: str, part: str, outcome: str, commit: str) -> list[str]:
    return [
        torch,
        "13.0",
        "2.28.9",
        "3.11.7",
        part,
        outcome,
        "5 passed, 1 skipped",
        "61",
        commit,
        "2026-11-22 18:40",
    ]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("asked", "anew", "kept"),
    [
        (["2.1"], False, [("2.1.0", "a"), ("2.11.0+cu130", "a")]),
        (["2.11"], False, [("2.1.0", "a"), ("2.1.0", "b")]),
        (["2.1", "2.11"], False, [("2.1.0", "a")]),
        (["2.1"], True, [("2.11.0+cu130", "a")]),
    ],
)
def test_what_passed_at_this_commit_is_kept(
    asked: list[str], anew: bool, kept: list[tuple[str, str]]
) -> None:
    rows, skips = compat.before(asked, anew)
    assert [(row[0], row[4]) for row in rows] == kept
    assert [len(row) for row in rows] == [len(compat._HEADER)] * len(kept)
    assert skips == [f"- torch {torch}, {part}: [1] tests/test_x.py:1: no GPU" for torch, part in kept]


@pytest.mark.usefixtures("table")
def test_parts_that_are_not_asked_for_are_kept() -> None:
    rows, _ = compat.before(["2.1"], True, ["a"])
    assert [(row[0], row[4]) for row in rows] == [("2.1.0", "b"), ("2.11.0+cu130", "a")]
