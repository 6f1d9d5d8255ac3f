"""A trace of a running job from the command line: merged, in the form that viewers need, and cleanly refused."""

from __future__ import annotations

import gzip
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import progress, run_folder
from engine.run.outcome import Ending
from engine.session import Session
from profilers.analysis.intervals import union_seconds
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.steps.clock_offset import ClockOffset, Offset
from tests.engine.runs.test_faults import LONG, when_at_step
from tests.support.profilers.overlap import communication, computation, overlap_fraction, overlap_seconds
from tests.support.runs import execute, small
from tests.support.waiting import wait_until
from tests.support.workbench import chrome_traces
from tests.workbench.conftest import Furnished, Run
from workbench.home import control, runs, traces
from workbench.home.control import Reply
from workbench.home.resolve import Target

STEPS = 2


@dataclass(frozen=True)
class Traced:
    """A run of two stages, its one trace, and what was answered."""

    folder: Path
    reply: Reply
    second: Reply
    after: Reply
    summary: RunSummary

    @property
    def trace(self) -> traces.Trace:
        (found,) = traces.list_traces(self.folder)
        return found

    @property
    def steps(self) -> range:
        first = self.trace.first
        assert first is not None
        return range(first, first + self.trace.steps_done)

    @property
    def document(self) -> dict[str, Any]:
        return chrome_traces.read(Path(self.reply.file or ""))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    replies: dict[str, Reply] = {}

    def trace(target: Target) -> None:
        replies["first"] = control.ask(target, "trace", {"steps": STEPS})

    def act(folder: Path) -> None:
        target = Target("run", folder.name, folder)
        first = threading.Thread(target=trace, args=(target,))
        first.start()
        wait_until(lambda: traces.running_trace(folder) is not None)
        replies["second"] = control.ask(target, "trace", {"steps": STEPS})
        first.join()
        control.ask(target, "stop", {})

    config = small(**LONG | {"parallel__dp": 1, "parallel__pp": 2})
    with Session(tmp_path_factory.mktemp("traced")) as session:
        outcome, summary = execute(session, config, on_start=when_at_step(3, act))
    assert outcome.ending is Ending.STOPPED
    folder = session.home / summary.id
    after = control.ask(Target("run", summary.id, folder), "trace", {"steps": STEPS})
    yield Traced(folder, replies["first"], replies["second"], after, summary)


def test_the_answer_names_the_file(traced: Traced) -> None:
    reply, trace = traced.reply, traced.trace
    assert reply.accepted
    assert reply.file == str(traced.folder / "traces" / f"step-{trace.first}-{STEPS}" / "merged.json.gz")
    assert f"steps {trace.first} to {traced.steps[-1]} of 2 ranks in {reply.file}" in reply.text
    assert (trace.state, trace.steps_done, trace.problems, trace.under_way) == ("recorded", STEPS, [], False)


def test_a_second_trace_is_refused_while_one_is_under_way(traced: Traced) -> None:
    assert traced.second.accepted is False
    assert traced.second.id is None
    assert "a trace of 2 steps is already being recorded" in traced.second.text


def test_a_run_that_has_ended_is_not_asked(traced: Traced) -> None:
    assert (traced.after.id, traced.after.accepted) == (None, None)
    assert traced.after.text == f"{traced.folder.name} has ended already: stopped"


@pytest.mark.drawn(2, of="long looks at traces")
def test_the_merged_trace_is_what_viewers_read(traced: Traced) -> None:
    events = traced.document["traceEvents"]
    assert chrome_traces.problems(events) == []
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0, dp 0 tp 0 pp 0 (host)", 1: "rank 1, dp 0 tp 0 pp 1 (host)"}
    assert any(event["ph"] == "s" for event in events)
    for rank in (0, 1):
        for name, lane in chrome_traces.lanes(events, rank).items():
            assert not list(torn(lane)), f"lane {name} of rank {rank}"


def torn(lane: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events of a lane that reach beyond the one they begin in; times are in units of 1 ns."""
    ends: list[float] = []
    for event in sorted(lane, key=lambda event: (event["ts"], -event["dur"])):
        while ends and ends[-1] <= event["ts"] + 1e-4:
            ends.pop()
        end = event["ts"] + event["dur"]
        if ends and end > ends[-1] + 2e-3:
            yield event
        ends.append(end)


def test_our_records_are_lanes_beside_those_of_the_profiler(traced: Traced) -> None:
    document, records = traced.document, RunRecords(traced.folder / run_folder.RECORDS)
    for rank in (0, 1):
        lanes = chrome_traces.lanes(document["traceEvents"], rank)
        assert [event["name"] for event in lanes["steps"]] == [f"step {step}" for step in traced.steps]
        assert {event["args"]["measured"] for event in lanes["steps"]} == {False}
        assert {event["name"] for event in lanes["phases"]} <= set(PHASES)
        assert len(lanes["pipeline actions"]) == STEPS * 8 * 2
        assert any(name.startswith("communication pp") for name in lanes)
        rows = records.table(rank, "step").rows()
        base = document["baseTimeNanoseconds"] / 1e9
        for event in lanes["steps"]:
            (row,) = [row for row in rows if f"step {row.step}" == event["name"]]  # type: ignore[union-attr]
            assert base + event["ts"] / 1e6 == pytest.approx(row.start_unix, abs=2e-6)  # type: ignore[union-attr]
        first, last = lanes["steps"][0], lanes["steps"][-1]
        busy = [event for lane in lanes.values() for event in lane if event["name"] == "aten::mm"]
        assert len(busy) > 10
        assert all(first["ts"] <= event["ts"] <= last["ts"] + last["dur"] for event in busy)


@pytest.mark.drawn(2, of="long looks at traces")
def test_hidden_communication_can_be_read_from_the_ranks_own_files(traced: Traced) -> None:
    """By the definition of Holistic Trace Analysis; benchmarks/hta_overlap.py asks it itself."""
    records = RunRecords(traced.folder / run_folder.RECORDS)
    for rank in (0, 1):
        path = Path(traced.reply.file or "").parent / traces.EACH / f"rank-{rank}.json.gz"
        head = gzip.decompress(path.read_bytes()).decode().partition('"traceEvents"')[0]
        assert re.findall(r'"rank":\s+(\d+)', head) == [str(rank)]
        kernels = [event for event in chrome_traces.read(path)["traceEvents"] if event.get("cat") == "kernel"]
        calls = [event for event in kernels if re.match("^nccl.*Kernel", event["name"])]
        assert {"gloo" in event["name"] for event in calls} == {True}
        others = [event for event in kernels if event not in calls]
        theirs = overlap_seconds(spans(others), spans(calls)) / union_seconds(spans(calls))
        ours = overlap_fraction(
            computation(records.table(rank, "span"), traced.steps),
            communication(records.table(rank, "comm"), traced.steps),
        )
        assert theirs == pytest.approx(ours, abs=0.005)
        assert 0 < theirs < 1


def spans(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


@pytest.mark.drawn(2, of="long looks at traces")
def test_clocks_that_differ_are_aligned(traced: Traced, tmp_path: Path) -> None:
    late = ClockOffset([Offset(0.0, 1.5, 0.0)])
    view, files = runs.load(traced.folder), traced.trace.files
    plain = traces._sources(view, files, traced.steps)
    moved = [plain[0], replace(plain[1], clock=late)]
    began = []
    for name, sources in (("plain", plain), ("moved", moved)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "merged.json.gz"
        traces.merge(sources, path, path.with_name("each"), "gloo", {})
        document = chrome_traces.read(path)
        assert chrome_traces.problems(document["traceEvents"]) == []
        began.append(
            [
                document["baseTimeNanoseconds"] / 1e9 + lane["steps"][0]["ts"] / 1e6
                for lane in (chrome_traces.lanes(document["traceEvents"], rank) for rank in (0, 1))
            ]
        )
    assert began[1][0] == pytest.approx(began[0][0], abs=1e-5)
    assert began[1][1] == pytest.approx(began[0][1] - 1.5, abs=1e-5)
    assert document["workbench"]["clocks"]["1"]["offset_seconds"] == 1.5


def test_traced_steps_are_not_measured(traced: Traced) -> None:
    steps = RunRecords(traced.folder / run_folder.RECORDS).table(0, "step")
    left_out = steps.column("step")[~steps.column("measured").astype(bool)].tolist()
    assert left_out == [0, traced.steps.start - 1, *traced.steps, traced.steps.stop]
    assert traced.summary.measured_steps == len(steps) - len(left_out)


def test_a_damaged_part_is_told_and_nothing_half_is_left(traced: Traced, tmp_path: Path) -> None:
    folder = shutil.copytree(traced.folder, tmp_path / traced.folder.name)
    merged = folder / Path(traced.reply.file or "").relative_to(traced.folder)
    merged.unlink()
    (trace,) = traces.list_traces(folder)
    assert trace.merged_path is None
    part = trace.files[1]
    part.write_bytes(part.read_bytes()[:-3000])
    with pytest.raises(traces.MergeError, match=r"rank-1\.json\.gz"):
        traces.merge_trace(folder, trace)
    assert sorted(path.name for path in merged.parent.glob("*.gz")) == ["rank-0.json.gz", "rank-1.json.gz"]
    part.unlink()
    (trace,) = traces.list_traces(folder)
    only = chrome_traces.read(traces.merge_trace(folder, trace))["traceEvents"]
    assert {event["pid"] for event in only} == {0}


def test_ranks_that_wrote_nothing_are_named(traced: Traced, tmp_path: Path) -> None:
    folder = shutil.copytree(traced.folder, tmp_path / traced.folder.name)
    (folder / run_folder.RECORDS / "rank-1.events").unlink()
    (trace,) = traces.list_traces(folder)
    assert (trace.state, len(trace.files)) == ("recorded", 1)
    assert trace.problems == ["the run ended before rank 1 wrote its part"]


def test_what_makes_no_sense(own_home: Furnished, command: Run) -> None:
    command("control", own_home.live, "trace", "steps=0").refused("trace='steps=0'", "from 1 to 100")
    command("control", own_home.live, "trace", "steps=101").refused("from 1 to 100")
    command("control", own_home.live, "trace", "now").refused("steps=N")
    command("control", "quickstart", "trace").refused("is a study", "running trial")
    ended = next(path.name for path in own_home.home.iterdir() if path.name.endswith("03f3"))
    done = command("control", ended, "trace")
    assert done.code == 0
    assert done.out.startswith(f"{ended} has ended already: ")
    assert progress.last_announcement(own_home.home / ended) == (0, 0)
