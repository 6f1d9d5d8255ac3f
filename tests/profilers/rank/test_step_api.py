"""The two lines of a job that tells its steps itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import profilers
from engine.rank import foreign
from profilers.records.reader import RunRecords
from tests.support.job import command
from workbench.home import runs

_LOOP = """
import json, sys, time
import torch
import profilers

w = torch.nn.Linear(64, 64)
one, other = (torch.optim.SGD(w.parameters(), lr=0.1) for _ in range(2))
marks = []
with profilers.recording(tokens=640) as recorded:
    for step in range(6):
        for optimizer in (one, other):
            w(torch.ones(8, 64)).sum().backward()
            optimizer.step()
        before = time.perf_counter()
        recorded.step(loss=float(step))
        marks.append((before, time.perf_counter()))
        if step == 3:
            with recorded.aside():
                time.sleep(0.5)
json.dump(marks, open(sys.argv[1], "w"))
"""


def test_without_a_recorded_job_they_do_nothing() -> None:
    with profilers.recording(tokens=1) as recorded:
        recorded.step(loss=1.0)
        with recorded.aside():
            pass


def test_a_tuner_that_started_the_job_hears_of_the_steps_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(foreign.FOLDER_VARIABLE, str(tmp_path / "place"))
    told = tmp_path / "place" / foreign.TOLD
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert not told.exists()
        with profilers.recording(tokens=64) as recorded:
            recorded.step(loss=2.5)
            with recorded.aside():
                time.sleep(0.5)
            recorded.step()
    first, second = map(json.loads, told.read_text().splitlines())
    assert [(one["event"], one["step"], one["tokens"]) for one in (first, second)] == [
        ("step", 0, 64),
        ("step", 1, 64),
    ]
    assert (first["loss"], second["loss"]) == (2.5, None)
    assert 0 < second["seconds"] < 0.5, "what is done aside is no part of a step"


def test_a_loop_that_tells_the_tuner_itself_is_not_told_of_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(foreign.FOLDER_VARIABLE, str(tmp_path))
    told = tmp_path / foreign.TOLD
    with profilers.recording() as recorded:
        told.write_text(begins := '{"event": "begin", "values": {}, "ranks": 1}\n')
        recorded.step()
        recorded.step()
    assert told.read_text() == begins


def test_steps_that_cannot_be_told_do_not_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(foreign.FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / foreign.TOLD).mkdir()
    with profilers.recording() as recorded:
        recorded.step()
        recorded.step()
    assert list((tmp_path / foreign.TOLD).iterdir()) == []


def test_steps_losses_and_tokens_are_as_told(tmp_path: Path) -> None:
    script, marks = tmp_path / "loop.py", tmp_path / "marks.json"
    script.write_text(_LOOP)
    home = tmp_path / "home"
    done = command.run(home, sys.executable, str(script), str(marks))
    assert done.returncode == 0, done.stderr
    view = runs.load(command.only_run(home))
    table = RunRecords(view.folder / "records").table(0, "step")
    assert table.column("step").tolist() == list(range(6))
    assert table.column("loss").tolist() == [float(step) for step in range(6)]
    noted = json.loads(marks.read_text())
    wall = (table.column("step_seconds").filled(0.0) + table.column("between_seconds").filled(0.0)).tolist()
    for step in (1, 2, 3, 5):
        (before_last, after_last), (before, after) = noted[step - 1], noted[step]
        assert before - after_last <= wall[step] <= after - before_last
    # What was done aside is no part of the step that it came before.
    assert wall[4] <= noted[4][1] - noted[3][0] - 0.5
    assert view.job is not None
    assert view.job.tokens_per_step == 640
    assert view.summary is not None
    assert view.summary.step_seconds is not None
    assert view.summary.step_seconds.mean is not None
    assert view.summary.tokens_per_second == 640 / view.summary.step_seconds.mean


def test_they_need_no_torch_to_be_imported() -> None:
    text = "import sys, profilers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
