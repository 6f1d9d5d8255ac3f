"""Which ranks ``memory.limit_gib`` caps."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from engine.config.run_config import RunConfig
from engine.rank import worker
from engine.run import run_folder
from engine.run.messages import RankTask
from engine.run.progress import Progress
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.runs import small

#: More than any process here has.
LIMIT_GIB = 4000.0


@pytest.mark.parametrize(("kind", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_a_gpu_rank_has_no_limit_on_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, backend: str
) -> None:
    """What a driver maps for a GPU, and pinned memory, may be more than any limit meant for weights."""
    before, during = resource.getrlimit(resource.RLIMIT_DATA), list[int]()

    def look(task: RankTask, config: RunConfig, progress: Progress) -> bool:
        during.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
        return True

    monkeypatch.setattr(worker, "_redirect", lambda path: None)
    monkeypatch.setattr(worker, "_train", look)
    folder = run_folder.create(tmp_path, small(memory__limit_gib=LIMIT_GIB), {})
    Progress(folder, 1).close()
    try:
        worker.run_task(RankTask(0, folder, kind, backend, "127.0.0.1", 1, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert during == [int(LIMIT_GIB * 2**30) if kind == "cpu" else before[1]]


@pytest.mark.parametrize(("device", "told"), [("cpu", 0), ("cuda", 1)])
def test_a_gpu_rank_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, told: int) -> None:
    monkeypatch.setattr(worker, "_arithmetic", lambda device: {})
    with RecordWriter(tmp_path, "rank-0") as writer:
        worker._introduce(0, small(memory__limit_gib=LIMIT_GIB), torch.device(device), None, writer)
    notes = [event.data["text"] for event in RunRecords(tmp_path).events(0) if event.kind == "note"]
    assert (
        len([note for note in notes if note.startswith("memory.limit_gib caps ranks on CPUs only")]) == told
    )
