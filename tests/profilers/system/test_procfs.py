"""What files of /proc say, and how they are read again."""

import os
from pathlib import Path

import psutil
import pytest

from profilers.system import procfs
from profilers.system.procfs import ProcFile, Status

STATUS = b"""Name:\tpython
State:\tS (sleeping)
VmHWM:\t  2048 kB
VmRSS:\t  1024 kB
Threads:\t7
voluntary_ctxt_switches:\t150
nonvoluntary_ctxt_switches:\t545
"""


def test_a_process_status() -> None:
    assert procfs.process_status(STATUS) == Status(1024 * 1024, 7, 150, 545)


def test_a_process_that_has_ended_is_no_process() -> None:
    with pytest.raises(ProcessLookupError):
        procfs.process_status(b"Name:\tpython\nState:\tZ (zombie)\nThreads:\t1\n")


@pytest.mark.parametrize("parse", [procfs.process_status, procfs.cpu_ticks, procfs.used_and_total_bytes])
def test_a_foreign_file_is_refused(parse: object) -> None:
    with pytest.raises(ValueError, match="in it"):
        parse(b"something else\n")  # type: ignore[operator]


def test_a_number_may_have_decimals() -> None:
    pressure = b"some avg10=41.20 avg60=33.28 total=15567\nfull avg10=0.00 avg60=0.00 total=0\n"
    assert procfs.decimal_after(pressure, b"some avg10=") == 41.2
    assert procfs.number_after(pressure, b"total=") == 15567
    with pytest.raises(ValueError, match=r"41\.20"):
        procfs.number_after(pressure, b"some avg10=")
    with pytest.raises(ValueError, match="no most avg10= in it"):
        procfs.decimal_after(pressure, b"most avg10=")


def test_devices_above_other_devices_do_not_count(tmp_path: Path) -> None:
    for name in ("nvme0n1/device", "dm-0", "loop0", "cciss!c0d0/device"):
        (tmp_path / name).mkdir(parents=True)
    assert procfs.physical_disks(tmp_path) == {b"nvme0n1", b"cciss/c0d0"}
    assert procfs.physical_disks(tmp_path / "nothing") == frozenset()
    assert procfs.disk_bytes(b" 7 0 loop0 1 0 9 1 1 0 9 1 0 1 1\n", frozenset({b"vda"})) is None


def test_a_long_file_is_read_whole_and_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 200_000)
    file = ProcFile(path)
    assert len(file.read()) == 200_000
    path.write_bytes(b"short")
    assert file.read() == b"short"
    file.close()
    assert file.read() == b"short"


def test_a_file_that_comes_in_pages_is_read_whole() -> None:
    found = ProcFile(Path("/proc/self/smaps")).read()
    assert len(found) > 10_000
    assert found.splitlines()[-1] == Path("/proc/self/smaps").read_bytes().splitlines()[-1]


def test_this_process() -> None:
    status = procfs.process_status(Path("/proc/self/status").read_bytes())
    me = psutil.Process()
    assert status.threads == me.num_threads()
    assert status.rss_bytes == pytest.approx(me.memory_info().rss, rel=0.2)
    statm = Path(f"/proc/{os.getpid()}/statm").read_bytes()
    assert procfs.resident_bytes(statm) == pytest.approx(me.memory_info().rss, rel=0.2)
