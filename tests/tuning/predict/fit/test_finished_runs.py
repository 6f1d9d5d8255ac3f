"""Finished runs read from their small documents, and kept in one file that is never trusted blindly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from tuning.predict.fit import finished_runs as module
from tuning.predict.fit.finished_runs import KEPT, FinishedRun, read_finished_run, read_finished_runs

PLAIN = parse({"parallel": {"dp": 2}})


def ran(home: Path, config: RunConfig = PLAIN, seconds: float | None = 0.5, **status: Any) -> Path:
    """A run folder as it is left after its records were pruned."""
    folder = run_folder.create(home, config, {})
    step = None if seconds is None else {"median": seconds, "p95": seconds, "low": None, "high": None}
    run_folder.write_json(folder / run_folder.SUMMARY, {"step_seconds": step, "peak_memory_bytes": 7})
    told = {"outcome": {"ending": "completed"}, "backend": "gloo", "fingerprint": {"cpu": "any"}, **status}
    run_folder.update_status(folder, **told)
    return folder


def test_a_run_is_read_from_its_summary(tmp_path: Path) -> None:
    found = read_finished_run(folder := ran(tmp_path))
    assert found is not None
    assert found.trial is not None
    assert (found.run, found.backend, found.fingerprint) == (folder.name, "gloo", {"cpu": "any"})
    assert (found.trial.config, found.trial.seconds, found.trial.peak_bytes) == (PLAIN, 0.5, 7)
    assert FinishedRun.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_only_what_ran_to_its_end_is_finished(tmp_path: Path) -> None:
    assert read_finished_run(ran(tmp_path, outcome={"ending": "oom"})) is None
    assert read_finished_run(ran(tmp_path, backend="simulated")) is None
    assert read_finished_run(tmp_path / "nothing") is None
    short, changed = read_finished_run(ran(tmp_path, seconds=None)), ran(tmp_path)
    run_folder.change_config(changed, PLAIN.with_values({"batch.micro_batch": 2}))
    broken = ran(tmp_path)
    (broken / run_folder.CONFIG).write_text('{"parallel": {"dpp": 2}}')
    reasons = ["has no measured step", "was changed as it went", "unknown key"]
    for one, reason in zip(
        (short, read_finished_run(changed), read_finished_run(broken)), reasons, strict=True
    ):
        assert one is not None
        assert one.trial is None
        assert reason in one.reason


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders, kept = (
        [ran(tmp_path), ran(tmp_path, outcome={"ending": "oom"}), ran(tmp_path, seconds=None)],
        tmp_path / KEPT,
    )
    first = read_finished_runs(folders, kept)
    assert [one.run for one in first] == [folders[0].name, folders[2].name]
    read = list[str]()
    monkeypatch.setattr(module, "read_finished_run", lambda folder: read.append(folder.name))
    assert read_finished_runs(folders, kept) == first
    assert not read
    run_folder.update_status(folders[0], labels={"kept": "yes"})
    read_finished_runs(folders, kept)
    assert read == [folders[0].name]


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", '{"format": 1, "runs": []}', '{"format": 9, "runs": {"a": 1}}']
)
def test_a_broken_file_is_made_anew(tmp_path: Path, text: str) -> None:
    kept, folder = tmp_path / KEPT, ran(tmp_path)
    kept.write_text(text)
    assert [one.run for one in read_finished_runs([folder], kept)] == [folder.name]
    assert folder.name in json.loads(kept.read_text())["runs"]


def test_an_entry_of_another_version_is_read_again(tmp_path: Path) -> None:
    kept, folder = tmp_path / KEPT, ran(tmp_path)
    first = read_finished_runs([folder], kept)
    document = json.loads(kept.read_text())
    document["runs"][folder.name][1]["trial"]["config"]["parallel"]["old_key"] = 1
    kept.write_text(json.dumps(document))
    assert read_finished_runs([folder], kept) == first


def test_runs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    kept, folders = tmp_path / KEPT, [ran(tmp_path), ran(tmp_path)]
    read_finished_runs(folders, kept)
    read_finished_runs(folders[:1], kept)
    assert list(json.loads(kept.read_text())["runs"]) == [folders[0].name]


def test_a_home_that_cannot_be_written_goes_without(tmp_path: Path) -> None:
    folder = ran(tmp_path)
    assert len(read_finished_runs([folder], tmp_path / "missing" / KEPT)) == 1
