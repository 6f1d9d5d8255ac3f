"""Chrome traces read and written piece by piece."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from profilers.trace import chrome
from profilers.trace.chrome import TraceError, TraceReader, TraceWriter, encode

#: As torch.profiler writes it, with its way of escaping quotes in what it was told.
TEXT = """
{
    "schemaVersion": 1,
    "deviceProperties": [
      {"id": 0, "name": "a GPU"}
    ],
      "told": "a/"b",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [

  {
    "ph": "X", "name": "one [ ] { } \\" ,", "ts": 4403993389707.446, "dur": 2.5, "pid": 1, "tid": 1
  },
  {"ph": "X", "name": "two", "ts": 4403993389710.0, "dur": 0, "pid": 1, "tid": 1, "args": {"sizes": [[2, 3], []]}}
  ],"traceName": "x.json" }
"""


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_events_one_by_one_however_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(chrome, "_CHUNK", chunk)
    with TraceReader(packed(tmp_path / "x.json.gz", TEXT)) as trace:
        events = list(trace.events())
        assert (trace.base_ns, trace.devices) == (1790857026000000000, [{"id": 0, "name": "a GPU"}])
    assert [event["name"] for event in events] == ['one [ ] { } " ,', "two"]
    assert events[0]["ts"] == 4403993389707.446
    assert events[1]["args"] == {"sizes": [[2, 3], []]}


@pytest.mark.parametrize("text", ["", "{}", TEXT[: TEXT.index("two")], TEXT.replace('"dur": 0,', '"dur": ,')])
def test_what_is_no_whole_trace_is_told(tmp_path: Path, text: str) -> None:
    path = packed(tmp_path / "x.json.gz", text)
    with pytest.raises(TraceError, match=r"x\.json\.gz"), TraceReader(path) as trace:
        list(trace.events())


def test_a_file_that_is_cut_short_or_not_compressed_is_told(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.json.gz", TEXT * 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceError, match=r"x\.json\.gz is damaged"), TraceReader(path) as trace:
        list(trace.events())
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(TraceError, match="damaged"):
        TraceReader(path)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    events: list[dict[str, Any]] = [
        {"ph": "X", "name": "a", "ts": 0.5, "dur": 1.0, "pid": 0, "tid": 1, "args": {"number": n}}
        for n in range(3)
    ]
    with TraceWriter(path, {"baseTimeNanoseconds": 12, "distributedInfo": {"rank": 3}}) as writer:
        for event in events:
            writer.write(encode(event))
        assert not path.exists()
    text = gzip.decompress(path.read_bytes()).decode()
    assert json.loads(text) == {
        "baseTimeNanoseconds": 12, "distributedInfo": {"rank": 3}, "traceEvents": events,
    }  # fmt: skip
    with TraceReader(path) as trace:
        assert (trace.base_ns, list(trace.events())) == (12, events)


def test_a_trace_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    with pytest.raises(RuntimeError), TraceWriter(path, {}) as writer:
        writer.write(b"{}")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
