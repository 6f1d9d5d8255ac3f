"""What a rank notes of NCCL. The backend's name and version are put in place: there is no NCCL without a GPU."""

from pathlib import Path

import pytest

from engine.rank import environment_report
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter

LOG = "step 1\nhost:1:2 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}\n"


@pytest.fixture
def on_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "nccl")
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 3))


def notes(folder: Path) -> list[str]:
    with RecordWriter(folder, "rank-0") as writer:
        environment_report.note_choices(folder / "rank-0.log", writer)
    return [event.data["text"] for event in RunRecords(folder).events(0) if event.kind == "note"]


@pytest.mark.usefixtures("on_nccl")
def test_the_version_is_told() -> None:
    assert environment_report.facts() == {"nccl": "2.27.3"}


@pytest.mark.usefixtures("on_nccl")
def test_choices_are_noted_where_the_log_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank-0.log").write_text(LOG)
    assert notes(tmp_path) == []
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert notes(tmp_path) == ["NCCL all_reduce of 4,096 bytes: tree, LL"]
    (tmp_path / "rank-0.log").unlink()
    assert len(notes(tmp_path)) == 1


def test_another_backend_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    assert environment_report.facts() == {}
