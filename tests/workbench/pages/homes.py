"""Homes that the page tests look at: full, empty, and damaged in every way a crash or a full disk leaves behind."""

from __future__ import annotations

from pathlib import Path

from tests.support.workbench.skewed_run import write_skewed
from tests.support.workbench.synthetic import write_home
from tests.support.workbench.synthetic_live import write_live


def full_home(home: Path) -> str:
    """Finished runs, a study and a run that goes on; returns the id of that run."""
    return write_home(home).run.id


def damaged_home(home: Path) -> None:
    """The full home after every kind of file was cut short, emptied or removed somewhere."""
    full_home(home)
    runs = sorted(path for path in home.iterdir() if path.name[:2] == "20")
    _cut(runs[0] / "status.json", 20)
    _cut(runs[1] / "summary.json", 100)
    (runs[2] / "config.json").unlink()
    for record in (runs[3] / "records").iterdir():
        _cut(record, record.stat().st_size - 7)
    for record in (runs[4] / "records").iterdir():
        record.write_bytes(b"")
    for record in (runs[5] / "records").glob("*.step"):
        record.write_bytes(b"\x00" * 300)
    (runs[6] / "progress").write_bytes(b"WB")
    _cut(runs[-1] / "status.json", 0)
    study = home / "studies" / "quickstart"
    _cut(study / "journal.jsonl", (study / "journal.jsonl").stat().st_size - 40)
    _cut(study / "status.json", 30)
    _cut(study / "result.json", 50)
    (home / "studies" / "empty").mkdir()
    (home / "20260101-000000-beef").mkdir()


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def home_of_every_page(home: Path) -> tuple[str, str]:
    """Something for every page: the names of a run with a call to look at, and of one that goes."""
    going = full_home(home)
    write_live(home)
    return write_skewed(home, lambda rank, step: 0.08 * ((rank, step) == (2, 16))), going
