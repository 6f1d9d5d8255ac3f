"""A reading of a rank's process is its field, the field of a summary's row and what reads it: a made-up one is read,
recorded, summed up over ranks, shown, exported and scraped by a copy of the code that has these three more.
"""

from __future__ import annotations

from pathlib import Path

from pyarrow import parquet

from tests.support.profilers.new_reading import NewReading

WRITE_CALLS = NewReading(
    stream="process",
    field="write_calls",
    name="write calls",
    title="calls that write of all ranks",
    entries={
        "profilers/records/schema.py": (
            "    read_bytes: int | None = field(metadata=GROWS)\n"
            "    written_bytes: int | None = field(metadata=GROWS)\n",
            "    write_calls: int | None = field(\n"
            '        default=None, metadata=GROWS | in_row(rate="write_calls_per_second")\n'
            '        | live_panel("calls that write", "per second")\n    )\n',
        ),
        "profilers/model/machine_rows.py": (
            '        default=None, metadata=display("involuntary switches of all ranks", "per second", in_line=True)\n'
            "    )\n",
            "    write_calls_per_second: float | None = field(\n"
            "        default=None,\n"
            '        metadata=display("calls that write of all ranks", "per second", in_line=True)\n    )\n',
        ),
        "profilers/system/processes.py": (
            "        _psutil_storage,\n    ),\n",
            '    Reading("write calls", ("write_calls",), '
            'lambda files: (procfs.number_after(files.read("io"), b"syscw:"),)),\n',
        ),
    },
    program="""
import os
from functools import partial
from profilers.records.schema import HostSample
from profilers.system.processes import LinuxProcess, Processes
from workbench.export.parquet import export

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
export(run, run / "out")
""",
)


#: The same of a line that no test writes, and without a half for psutil.
SWAPPED = WRITE_CALLS._replace(
    entries={
        name: (after, entry.replace('"io"', '"status"').replace('b"syscw:"', 'b"VmSwap:"'))
        for name, (after, entry) in WRITE_CALLS.entries.items()
    },
    program="",
)


def test_tests_of_other_readings_stay_as_they_are(tmp_path: Path) -> None:
    files = ("tests/profilers/system/test_processes.py", "tests/workbench/figures/test_host.py")
    SWAPPED.run_tests(tmp_path, *files)


def test_three_entries_are_enough(tmp_path: Path) -> None:
    document = WRITE_CALLS.run(tmp_path)
    WRITE_CALLS.check_summary(document, 70.0)
    rates = [values for _, values in document["drawn"]]
    assert [50.0] in rates and [20.0] in rates
    assert sorted(document["scraped"]) == [["0", 500.0], ["1", 200.0]]
    exported = parquet.read_table(tmp_path / "run" / "out" / "process.parquet")
    assert exported["write_calls"].to_pylist()[-2:] == [500, 200]
