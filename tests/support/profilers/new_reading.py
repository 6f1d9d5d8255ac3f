"""A made-up reading in a copy of the code that has its entries: what becomes of it, from records to metrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
_HEAD = """
import json, sys
from pathlib import Path
import msgspec
import profilers
from profilers.analysis.machine import host_rows
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from workbench.figures import host
from workbench.metrics.families import families
from workbench.metrics.follow import FollowedRun
from workbench.records.live_records import KeptStream
from workbench.text import quantities

stream, field, proc, run = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
(run / "records").mkdir(parents=True)
"""
_END = """
records = RunRecords(run / "records")
(row,) = host_rows(records)
kept = KeptStream(stream)
kept.add(records.table("launcher", stream))
columns = {"host": {}, "process": {}} | {stream: kept.columns()}
lines = host.readings(columns["host"], columns["process"], 100.0).data
followed = FollowedRun(run)
followed.refresh()
samples = [sample for family in families([followed]) for sample in family.samples]
print(json.dumps({
    "code": profilers.__file__,
    "missing": reader.missing,
    "document": msgspec.to_builtins(row)[f"{field}_per_second"],
    "line": quantities.host(row),
    "columns": {column.title: column.numbers for column in quantities.host_columns([row])},
    "drawn": [[line.name, sorted(set(line.y))] for line in lines if line.y is not None],
    "scraped": [[sample.labels.get("rank"), sample.value] for sample in samples
                if sample.name == f"workbench_{stream}_{field}_total"],
}))
"""


class NewReading(NamedTuple):
    """A counter ``field`` of a record ``stream``, shown as ``title``; ``name`` is that of the reading.

    ``entries``: file -> the lines after which its entry stands, and the entry. ``program`` writes records of ten
    seconds to ``run``, from files below ``proc``, with a ``reader`` that says what is ``missing``.
    """

    stream: str
    field: str
    name: str
    title: str
    entries: dict[str, tuple[str, str]]
    program: str

    def run(self, folder: Path) -> dict[str, Any]:
        """What it came to at each place, with a copy of the code in ``folder``."""
        code = folder / "code"
        self._copy_code(code)
        environment = os.environ | {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = (self.stream, self.field, str(folder / "proc"), str(folder / "run"))
        process = subprocess.run(
            [sys.executable, "-c", _HEAD + self.program + _END, *arguments],
            cwd=code, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        document: dict[str, Any] = json.loads(process.stdout)
        assert document["code"].startswith(str(code))
        return document

    def run_tests(self, folder: Path, *files: str) -> None:
        """Tests of other readings pass with it, where their stand-ins have nothing of it."""
        code = folder / "code"
        self._copy_code(code)
        for name in ("tests", "benchmarks", "pyproject.toml"):
            (code / name).symlink_to(ROOT / name)
        environment = os.environ | {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *files],
            cwd=code, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout

    def _copy_code(self, code: Path) -> None:
        """What changes is copied, all other code is the one here."""
        shutil.copytree(ROOT / "profilers", code / "profilers", ignore=shutil.ignore_patterns("__pycache__"))
        for package in ("engine", "tuning", "workbench"):
            (code / package).symlink_to(ROOT / package)
        for name, (after, entry) in self.entries.items():
            source = (code / name).read_text(encoding="utf-8")
            assert source.count(after) == 1, f"the end of the entries in {name} is another one now"
            (code / name).write_text(source.replace(after, after + entry), encoding="utf-8")

    def check_summary(self, document: dict[str, Any], rate: float) -> None:
        """The summary, its line and its table have the mean rate."""
        assert not [line for line in document["missing"] if self.name in line]
        assert document["document"] == rate
        assert f"{self.title} {rate:g} per second" in document["line"]
        assert document["columns"][f"{self.title}, per second"] == [rate]
