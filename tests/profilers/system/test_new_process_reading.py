"""A reading of a rank's process is its field, the field of a summary's row and what reads it: a made-up one is read,
recorded, summed up over ranks, shown, exported and scraped by a copy of the code that has these three more.
"""

from __future__ import annotations

from pathlib import Path

from tests.profilers.system.test_new_host_reading import asked_of_it, copy_with

#: File -> the line after which it stands, and what is added.
ADDED = {
    "profilers/records/schema.py": (
        "    read_bytes: int | None = field(metadata=GROWS)\n"
        "    written_bytes: int | None = field(metadata=GROWS)\n",
        "    write_calls: int | None = field(\n"
        '        default=None, metadata=GROWS | in_row(rate="write_calls_per_second")\n'
        '        | live_panel("calls that write", "per second")\n    )\n',
    ),
    "profilers/model/machine_rows.py": (
        '        default=None, metadata=shown("involuntary switches of all ranks", "per second", in_line=True)\n'
        "    )\n",
        "    write_calls_per_second: float | None = field(\n"
        '        default=None, metadata=shown("calls that write of all ranks", "per second", in_line=True)\n    )\n',
    ),
    "profilers/system/processes.py": (
        "        _psutil_storage,\n    ),\n",
        '    Reading("write calls", ("write_calls",), '
        'lambda files: (procfs.number_after(files.read("io"), b"syscw:"),)),\n',
    ),
}
ASKED = """
import json, os, sys
from functools import partial
from pathlib import Path
import msgspec
import profilers
import pyarrow.parquet as parquet
from profilers.analysis.machine import host_rows
from profilers.records.reader import RunRecords
from profilers.records.schema import HostSample
from profilers.records.writer import RecordWriter
from profilers.system.processes import LinuxProcess, Processes
from workbench.export.parquet import export
from workbench.figures import host
from workbench.metrics.families import families
from workbench.metrics.follow import FollowedRun
from workbench.records.live_records import KeptStream
from workbench.text import quantities

proc, run = Path(sys.argv[1]), Path(sys.argv[2])
(run / "records").mkdir(parents=True)
seconds = [100.0 + second for second in range(11)]
now, pids = iter(seconds), (os.getpid(), os.getppid())
reader = Processes(partial(LinuxProcess, proc=proc), lambda: next(now))
for pid in pids:
    (proc / str(pid)).mkdir(parents=True)
    lines = ("", "VmRSS: 8 kB", "Threads: 1", "voluntary_ctxt_switches: 1", "nonvoluntary_ctxt_switches: 2", "")
    (proc / str(pid) / "status").write_text("\\n".join(lines))
reader.watch(pids)
with RecordWriter(run / "records", "launcher") as writer:
    for count, at in enumerate(seconds):
        for pid, calls in zip(pids, (50, 20)):
            (proc / str(pid) / "io").write_text(
                f"rchar: 1\\nsyscr: 1\\nsyscw: {calls * count}\\nread_bytes: 0\\nwrite_bytes: 0\\n"
            )
        writer.write(HostSample(at, *[None] * 9))
        writer.write_many(reader.records())
records = RunRecords(run / "records")
(row,) = host_rows(records)
kept = KeptStream("process")
kept.add(records.table("launcher", "process"))
lines = host.readings({}, kept.columns(), 100.0).data
followed = FollowedRun(run)
followed.refresh()
scraped = [(sample.name, sample.labels, sample.value) for one in families([followed]) for sample in one.samples]
export(run, run / "out")
print(json.dumps({
    "code": profilers.__file__,
    "missing": reader.missing,
    "document": msgspec.to_builtins(row)["write_calls_per_second"],
    "line": quantities.host(row),
    "columns": {column.title: column.numbers for column in quantities.host_columns([row])},
    "drawn": [sorted(set(trace.y)) for trace in lines if trace.y is not None],
    "scraped": {labels["rank"]: value for name, labels, value in scraped
                if name == "workbench_process_write_calls_total"},
    "exported": parquet.read_table(run / "out" / "process.parquet")["write_calls"].to_pylist(),
}))
"""


def test_three_entries_are_enough(tmp_path: Path) -> None:
    copy_with(ADDED, tmp_path / "code")
    told = asked_of_it(tmp_path / "code", ASKED, tmp_path / "proc", tmp_path / "run")
    assert told["missing"] == []
    assert told["document"] == 70.0
    assert "calls that write of all ranks 70 per second" in told["line"]
    assert told["columns"]["calls that write of all ranks, per second"] == [70.0]
    assert [50.0] in told["drawn"] and [20.0] in told["drawn"]
    assert told["scraped"] == {"0": 500.0, "1": 200.0}
    assert told["exported"][-2:] == [500, 200]
