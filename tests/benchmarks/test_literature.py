"""The registry of published systems: files are found by themselves, and tell their lines of what was kept."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import _expert_slots as slots
from benchmarks import _table as table
from benchmarks import literature
from benchmarks import systems as of_all
from benchmarks.literature import se_moe

MADE_UP = """
from pathlib import Path
from benchmarks.literature import System

SYSTEMS = {"made up": System(Path(__file__), lambda given, measures: ["a line", str(measures)])}
"""


def test_a_file_in_the_folder_is_a_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_system.py").write_text(MADE_UP)
    monkeypatch.setattr(literature, "__path__", [*literature.__path__, str(tmp_path)])
    found = literature.systems()
    assert found["made up"].line(Namespace(), False) == ["a line", "False"]
    assert {"karma", "signatures", "registers", "partial", "experts", "slots", "placed"} <= set(found)
    del sys.modules["benchmarks.literature.made_up_system"]


def test_experts_in_memory_are_counted_and_too_many_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded is played to slots of each number, all of which are needed; then as if one more were."""
    trace = [
        [(layer, expert) for layer, expert in there] for there in json.loads(slots.KEPT.read_text())["trace"]
    ]
    assert [slots.experts_in_memory(trace, count) for count in slots.SLOTS] == list(slots.SLOTS)
    line = se_moe.SYSTEMS["slots"].line
    assert line(Namespace(), False)[2].endswith("than slots: 4 of 4")
    monkeypatch.setattr(slots, "experts_in_memory", lambda _, count: count + 1)
    found = line(Namespace(), False)
    assert found[2].endswith("than slots: 0 of 4") and found[-1] == "does not keep every bar"


def test_what_was_kept_is_told_without_a_measurement() -> None:
    kept = {name: system for name, system in literature.systems().items() if system.kept.exists()}
    assert len(kept) > 5
    for name, system in kept.items():
        line = system.line(Namespace(save=False), False)
        assert len(line) == len(literature.HEADER), name
        assert all(line), name


def test_words_are_written_again_without_a_measurement_and_without_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row keeps the commit that its own measurements came with."""

    def line(_: Namespace, measures: bool) -> list[str]:
        assert not measures
        return ["new words"]

    made_up = literature.System(slots.KEPT, line, (table.RESULTS / "systems_tasks.json",))
    monkeypatch.setattr(of_all, "systems", lambda: {"made up": made_up})
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "last_commit", lambda *files: f"the last of {len(files)}")
    monkeypatch.setattr(sys, "argv", ["systems", "--kept", "--save"])
    of_all.main()
    text = (tmp_path / "systems.md").read_text("utf-8")
    assert "| new words | the last of 2 |" in text
    assert "nothing was measured there" in text and table.machine() not in text
