"""A reading of the host is its field, the field of a summary's row and what reads it: a made-up one is read, recorded,
summed up, shown and scraped by a copy of the code that has these three more.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.profilers.new_reading import NewReading
from tests.support.profilers.proc_files import write_proc

SWITCHES = NewReading(
    stream="host",
    field="context_switches",
    name="switches",
    title="context switches",
    entries={
        "profilers/records/schema.py": (
            ' | live_panel("load over a minute", "processes", 1, ",.2f")\n    )\n',
            "    context_switches: int | None = field(\n"
            '        default=None, metadata=GROWS | in_row(rate="context_switches_per_second")\n'
            '        | live_panel("context switches", "per second")\n    )\n',
        ),
        "profilers/model/machine_rows.py": (
            '        default=None, metadata=display("involuntary switches of all ranks", "per second", in_line=True)\n'
            "    )\n",
            "    context_switches_per_second: float | None = field(\n"
            '        default=None, metadata=display("context switches", "per second", in_line=True)\n    )\n',
        ),
        "profilers/system/host_sources.py": (
            "        lambda module: module.getloadavg()[:1],\n    ),\n",
            '    Reading("switches", ("context_switches",), '
            'lambda files: (procfs.number_after(files.read("stat"), b"ctxt "),)),\n',
        ),
    },
    program="""
from profilers.system.host import Host
from profilers.system.host_sources import ProcSource

now = iter(100.0 + second for second in range(11))
reader = Host(ProcSource(proc, proc / "block"), lambda: next(now))
with RecordWriter(run / "records", "launcher") as writer:
    for count in range(11):
        stat = (proc / "stat").read_text().partition("ctxt ")[0]
        (proc / "stat").write_text(f"{stat}ctxt {50 * count}\\n")
        for records in reader.records():
            writer.write_many(records)
""",
)


#: The same from a file that no test writes, and that Linux alone has.
SWAPPED_OUT = SWITCHES._replace(
    entries={
        name: (after, entry.replace('"stat"', '"vmstat"').replace('b"ctxt "', 'b"pswpout "'))
        for name, (after, entry) in SWITCHES.entries.items()
    },
    program="",
)


def test_tests_of_other_readings_stay_as_they_are(tmp_path: Path) -> None:
    files = ("tests/profilers/system/test_host.py", "tests/workbench/figures/test_host.py")
    SWAPPED_OUT.run_tests(tmp_path, *files)


def test_three_entries_are_enough(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    write_proc(tmp_path / "proc")
    document = SWITCHES.run(tmp_path)
    SWITCHES.check_summary(document, 50.0)
    assert ["context switches", [50.0]] in document["drawn"]
    assert [value for _, value in document["scraped"]] == [500.0]
