"""Traces and snapshots of a foreign job's ranks on request, while it goes; none of the steps they disturb counts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from engine.run import answers, progress, run_folder
from tests.support.job import command
from tests.support.waiting import wait_until
from tests.support.workbench import chrome_traces
from workbench.home import control, runs, traces
from workbench.home.resolve import Target
from workbench.records import archive

pytestmark = pytest.mark.drawn(2, of="orders to foreign jobs")

_STEPS = 2
_PATIENCE_SECONDS = 60.0


@pytest.mark.timeout(180)
def test_its_ranks_write_a_trace_and_what_their_memory_holds(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    job = command.start(home, *command.TORCHRUN, str(command.TRAINER), "ddp", str(out), "100000", "asked")
    try:
        assert wait_until(lambda: any(home.glob("*/progress")), _PATIENCE_SECONDS)
        folder = command.only_run(home)
        assert wait_until(lambda: [one.step > 3 for one in progress.read(folder)] == [True] * 2, 60)
        target = Target("run", folder.name, folder)
        traced = control.ask(target, "trace", {"steps": _STEPS}, "test", _PATIENCE_SECONDS)
        kept = control.ask(target, "snapshot", {"steps": 1}, "test", _PATIENCE_SECONDS)
        refused = control.ask(target, "evaluate", {}, "test", 1.0)
        last = max(one.step for one in progress.read(folder))  # what was disturbed is to be in the records
        assert wait_until(lambda: min(one.step for one in progress.read(folder)) > last + 3, 60)
    finally:
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
    assert traced.accepted and traced.file is not None, traced.text
    (trace,) = traces.list_traces(folder)
    assert (trace.state, trace.steps_done, len(trace.files), trace.problems) == ("recorded", _STEPS, 2, [])
    assert trace.first is not None
    events = chrome_traces.read(Path(traced.file))["traceEvents"]
    for rank in range(2):  # of torch.profiler, and our own lanes of its steps
        mine = [event for event in events if event["pid"] == rank]
        names = {str(event.get("name")) for event in mine}
        assert any("AdamW.step" in name for name in names)
        assert {f"step {trace.first}", f"step {trace.first + 1}"} <= names, sorted(names)[:50]
    assert any(str(event.get("name")).startswith("gloo:all_reduce") for event in events)
    assert kept.accepted, kept.text
    written = [one for one in answers.run_answers(folder) if one.command == "snapshot"]
    assert [json.loads((folder / one.files[0]).read_text())["rank"] for one in written] == [0, 1]
    assert not refused.accepted and "foreign job" in refused.text and "trace" in refused.text
    # Of a job with many steps they are compacted when it ends.
    table = archive.records(folder / run_folder.RECORDS).table(0, "step")
    measured = dict(zip(table.column("step").tolist(), table.column("measured").tolist(), strict=True))
    disturbed = range(trace.first - 1, trace.first + _STEPS + 1)
    assert [measured[step] for step in disturbed] == [False] * len(disturbed)
    assert measured[trace.first - 2] or trace.first - 2 < 2
    assert runs.load(folder).outcome == "stopped"
