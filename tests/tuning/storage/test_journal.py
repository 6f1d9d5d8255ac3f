"""The journal: nothing half-written is believed, nothing whole is lost."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run.ownership import Owner
from tuning.storage import journal
from tuning.storage.journal import Journal
from tuning.storage.state import fold

LINES: list[dict[str, Any]] = [
    {"at_unix": 1.0, "kind": "study", "file": {"name": "a"}, "fingerprint": "f"},
    {"at_unix": 2.0, "kind": "proposal", "number": 0, "config": {"parallel.tp": 1}, "source": "baseline"},
    {"at_unix": 3.0, "kind": "lease", "number": 0, "pid": 7, "start_time": 1.5},
    {"at_unix": 4.0, "kind": "started", "number": 0, "run": "r-0"},
    {"at_unix": 5.0, "kind": "tell", "number": 0, "outcome": "completed", "value": 10.0, "samples": [9, 11]},
]  # fmt: skip


def test_lines_fold_into_trials() -> None:
    state = fold(LINES)
    trial = state.trials[0]
    assert (trial.outcome, trial.value, trial.samples, trial.run) == ("completed", 10.0, (9.0, 11.0), "r-0")
    assert (trial.proposed_unix, trial.ended_unix, trial.lease) == (2.0, 5.0, Owner(7, 1.5))
    assert state.running is None
    assert state.next_number == 1


def test_what_is_said_twice_counts_once() -> None:
    twice = [*LINES, LINES[1] | {"config": {"parallel.tp": 9}}, LINES[4] | {"value": 99.0}]
    assert fold(twice).trials == fold(LINES).trials


def test_a_newer_writer_is_tolerated_and_nonsense_is_reported() -> None:
    newer = [*LINES, {"at_unix": 6.0, "kind": "weather", "sun": True}]
    assert fold(newer) == fold(LINES)
    orphan = fold([*LINES, {"at_unix": 6.0, "kind": "tell", "number": 7, "outcome": "oom"}])
    assert orphan.trials == fold(LINES).trials
    assert "tell line is incomplete" in orphan.damage[0]


def test_a_half_written_last_line_is_forgiven_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"at_unix": 6.0, "ki')
    assert journal.load(path) == fold(LINES)
    writer = Journal(path)
    writer.append("note", text="on we go")
    writer.close()
    state = journal.load(path)
    assert (state.notes, state.damage) == (("on we go",), ())


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES))
    writer = Journal(path)
    writer.append("note", text="more")
    writer.close()
    assert journal.load(path).trials == fold(LINES).trials


def test_a_bad_line_in_the_middle_is_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    text = [json.dumps(line) for line in LINES]
    path.write_text("\n".join([*text[:3], '{"at_unix": 3.5, garbage', *text[3:]]) + "\n")
    state = journal.load(path)
    assert state.trials == fold(LINES).trials
    assert state.damage == ("journal.jsonl line 4 cannot be read and is left out",)


def test_what_is_no_number_is_unknown(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "journal.jsonl")
    writer.append("proposal", number=0, config={}, source="sampler")
    writer.append(
        "tell", number=0, outcome="diverged", value=None, validation_loss=math.nan, seconds=math.inf
    )
    writer.close()
    trial = journal.load(tmp_path / "journal.jsonl").trials[0]
    assert trial.validation_loss is None
    assert writer.state.trials[0] == trial


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "file" / "journal.jsonl")
