"""A reading of the host is its field, the field of a summary's row and what reads it: a made-up one is read, recorded,
summed up, shown and scraped by a copy of the code that has these three more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.profilers.proc_files import write_proc

ROOT = Path(__file__).parents[3]
#: File -> the line after which it stands, and what is added.
ADDED = {
    "profilers/records/schema.py": (
        ' | live_panel("load over a minute", "processes", 1, ",.2f")\n    )\n',
        "    context_switches: int | None = field(\n"
        '        default=None, metadata=GROWS | in_row(rate="context_switches_per_second")\n'
        '        | live_panel("context switches", "per second")\n    )\n',
    ),
    "profilers/model/machine_rows.py": (
        '        default=None, metadata=shown("involuntary switches of all ranks", "per second", in_line=True)\n'
        "    )\n",
        "    context_switches_per_second: float | None = field(\n"
        '        default=None, metadata=shown("context switches", "per second", in_line=True)\n    )\n',
    ),
    "profilers/system/host_sources.py": (
        "        lambda module: module.getloadavg()[:1],\n    ),\n",
        '    Reading("switches", ("context_switches",), '
        'lambda files: (procfs.number_after(files.read("stat"), b"ctxt "),)),\n',
    ),
}
ASKED = """
import json, sys
from pathlib import Path
import msgspec
import profilers
from profilers.analysis.machine import host_rows
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.system.host import Host
from profilers.system.host_sources import ProcSource
from workbench.figures import host
from workbench.metrics.families import families
from workbench.metrics.follow import FollowedRun
from workbench.records.live_records import KeptStream
from workbench.text import quantities

proc, run = Path(sys.argv[1]), Path(sys.argv[2])
(run / "records").mkdir(parents=True)
now = iter(100.0 + second for second in range(11))
reader = Host(ProcSource(proc, proc / "block"), lambda: next(now))
with RecordWriter(run / "records", "launcher") as writer:
    for count in range(11):
        stat = (proc / "stat").read_text().partition("ctxt ")[0]
        (proc / "stat").write_text(f"{stat}ctxt {50 * count}\\n")
        for records in reader.records():
            writer.write_many(records)
records = RunRecords(run / "records")
(row,) = host_rows(records)
kept = KeptStream("host")
kept.add(records.table("launcher", "host"))
lines = host.readings(kept.columns(), {}, 100.0).data
followed = FollowedRun(run)
followed.refresh()
scraped = {sample.name: sample.value for one in families([followed]) for sample in one.samples}
print(json.dumps({
    "code": profilers.__file__,
    "missing": reader.missing,
    "document": msgspec.to_builtins(row)["context_switches_per_second"],
    "line": quantities.host(row),
    "columns": {column.title: column.numbers for column in quantities.host_columns([row])},
    "drawn": {trace.name: sorted(set(trace.y)) for trace in lines},
    "scraped": scraped["workbench_host_context_switches_total"],
}))
"""


def copy_with(added: dict[str, tuple[str, str]], folder: Path) -> None:
    """The project's packages with what is added; what changes is copied, all other code is the one here."""
    shutil.copytree(ROOT / "profilers", folder / "profilers", ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("engine", "tuning", "workbench"):
        (folder / package).symlink_to(ROOT / package)
    for name, (after, text) in added.items():
        source = (folder / name).read_text(encoding="utf-8")
        assert source.count(after) == 1, f"the end of the entries in {name} is another one now"
        (folder / name).write_text(source.replace(after, after + text), encoding="utf-8")


def asked_of_it(code: Path, asked: str, *arguments: Path) -> dict[str, Any]:
    """What a program prints as JSON that runs with a copy of the code."""
    environment = os.environ | {"PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", asked, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=code, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["code"].startswith(str(code))
    return told


def test_three_entries_are_enough(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    write_proc(proc)
    copy_with(ADDED, tmp_path / "code")
    told = asked_of_it(tmp_path / "code", ASKED, proc, tmp_path / "run")
    assert told["missing"] == []
    assert told["document"] == 50.0
    assert "context switches 50 per second" in told["line"]
    assert told["columns"]["context switches, per second"] == [50.0]
    assert told["drawn"]["context switches"] == [50.0]
    assert told["scraped"] == 500.0
