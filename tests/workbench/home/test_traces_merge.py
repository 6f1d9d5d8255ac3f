"""Merging what ranks on GPUs recorded: made by hand, in the form that torch.profiler writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from profilers.trace.lanes import Span, assign_lanes
from tests.support.workbench import chrome_traces
from workbench.home.traces import Source, merge

HOST = 4711


def write(path: Path, base_ns: int, thread: int = HOST) -> Path:
    """A launch on the host, its kernel on GPU 0, the flow between them, and ranges of NCCL that overlap."""
    events: list[dict[str, Any]] = [
        *about(HOST, "python", "CPU"),
        *about(0, "python", "GPU 0"),
        *about(1, "python", "GPU 1"),
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 10.0, "args": {"name": "stream 7"}},
        span("aten::mm", "cpu_op", HOST, thread, 20.0, 5.0, {"External id": 1}),
        span("cudaLaunchKernel", "cuda_runtime", HOST, thread, 21.0, 1.0, {"correlation": 9}),
        {"ph": "s", "name": "ac2g", "cat": "ac2g", "id": 9, "pid": HOST, "tid": thread, "ts": 21.0},
        span("sgemm", "kernel", 0, 7, 30.0, 10.0, {"correlation": 9, "stream": 7}),
        {"ph": "f", "name": "ac2g", "cat": "ac2g", "id": 9, "pid": 0, "tid": 7, "ts": 30.0, "bp": "e"},
        span("nccl:send", "user_annotation", HOST, thread, 22.0, 10.0, {}),
        span("nccl:recv", "user_annotation", HOST, thread, 24.0, 12.0, {}),
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
         "ts": 10.0, "dur": 99.0},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 109.0},
    ]  # fmt: skip
    document = {"deviceProperties": [{"id": 0}], "baseTimeNanoseconds": base_ns, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def about(process: int, name: str, label: str) -> list[dict[str, Any]]:
    given = {"process_name": {"name": name}, "process_labels": {"labels": label}}
    return [
        {"ph": "M", "name": key, "pid": process, "tid": 0, "ts": 10.0, "args": args}
        for key, args in given.items()
    ]


def span(name: str, kind: str, process: int, thread: int, ts: float, dur: float, args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": thread,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def merged(tmp_path: Path) -> dict[str, Any]:
    step = {
        "steps": [Span("step", "step 4", 1.0, 0.5, {})],
        "phases": [Span("phase", "forward", 1.0, 0.4, {})],
    }
    sources = [
        Source(rank, write(tmp_path / f"rank-{rank}.json.gz", 10**9 + rank * 1_000), f"rank {rank}", step)
        for rank in (0, 1)
    ]
    merge(sources, tmp_path / "merged.json.gz", tmp_path / "each", "nccl", {"run": "a"})
    return chrome_traces.read(tmp_path / "merged.json.gz")


def test_processes_and_ids_of_ranks_are_kept_apart(tmp_path: Path) -> None:
    events = merged(tmp_path)["traceEvents"]
    assert chrome_traces.problems(events) == []
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {
        0: "rank 0 (host)", 10_000: "rank 0 (GPU 0)", 1: "rank 1 (host)", 10_001: "rank 1 (GPU 0)",
    }  # fmt: skip
    flows = [(event["ph"], event["id"], event["pid"]) for event in events if event["ph"] in "sf"]
    assert flows == [("s", 90_000, 0), ("f", 90_000, 10_000), ("s", 90_001, 1), ("f", 90_001, 10_001)]
    linked = {
        event["args"]["correlation"] for event in events if event["name"] in ("sgemm", "cudaLaunchKernel")
    }
    assert linked == {90_000, 90_001}


def test_one_time_axis(tmp_path: Path) -> None:
    document = merged(tmp_path)
    starts = {event["pid"]: event["ts"] for event in document["traceEvents"] if event["name"] == "aten::mm"}
    assert starts[1] - starts[0] == 1.0
    base_us = document["baseTimeNanoseconds"] / 1e3
    assert base_us + starts[0] == 1e6 + 20.0
    steps = [event["ts"] for event in document["traceEvents"] if event["name"] == "step 4"]
    assert [base_us + ts for ts in steps] == [1e6, 1e6]


def test_our_lanes_have_the_lowest_numbers_that_are_free(tmp_path: Path) -> None:
    """Perfetto draws the threads of a process in this order, the one with the process's own number first."""
    step = [Span("step", "step 4", 1.0, 0.5, {})]
    source = Source(
        2, write(tmp_path / "a.json.gz", 10**9, thread=3), "rank 2", dict.fromkeys(("a", "b"), step)
    )
    merge([source], tmp_path / "merged.json.gz", tmp_path / "each", "nccl", {})
    events = chrome_traces.read(tmp_path / "merged.json.gz")["traceEvents"]
    named = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert (named["a"], named["b"]) == (1, 4)
    assert named["backend"] > 2**22


@pytest.mark.parametrize(
    ("begin", "length", "found"), [(1.0, 2.0, 0), (2.0, 4.0, 1), (5.0, 1.0, 0), (1.0, 4.0, 0), (0.5, 2.0, 1)]
)
def test_events_that_only_partly_overlap_are_a_problem(begin: float, length: float, found: int) -> None:
    events = [span("one", "cpu_op", 0, 1, 1.0, 4.0, {}), span("other", "cpu_op", 0, 1, begin, length, {})]
    assert len(chrome_traces.problems(events)) == found


def test_ranges_of_the_backend_do_not_tear_the_threads(tmp_path: Path) -> None:
    events = merged(tmp_path)["traceEvents"]
    lanes = chrome_traces.lanes(events, 1)
    assert [event["name"] for event in lanes["backend"]] == ["nccl:send"]
    assert [event["name"] for event in lanes["backend (2)"]] == ["nccl:recv"]


def test_a_rank_with_kernels_gets_none_of_ours(tmp_path: Path) -> None:
    merged(tmp_path)
    document = chrome_traces.read(tmp_path / "each" / "rank-1.json.gz")
    kernels = [event["name"] for event in document["traceEvents"] if event.get("cat") == "kernel"]
    assert kernels == ["sgemm"]
    assert document["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 2}
    assert document["deviceProperties"] == [{"id": 0}]


def test_spans_that_overlap_go_to_as_few_lanes_as_they_can() -> None:
    made = assign_lanes(
        [Span("", name, start, 2.0, {}) for name, start in (("b", 1.0), ("a", 0.0), ("c", 2.0), ("d", 3.0))]
    )
    assert [[span.name for span in lane] for lane in made] == [["a", "c"], ["b", "d"]]
