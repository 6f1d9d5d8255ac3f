"""Host readings: from recorded psutil answers, from recorded files of /proc, and from the real machine."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from profilers.records.schema import CoreSample, HostSample, NetworkSample
from profilers.system.host import Host
from profilers.system.host_sources import READINGS, ProcSource, PsutilSource
from profilers.system.procfs import InterfaceCounters
from tests.support.profilers.proc_files import stat, write_proc
from tests.support.samples import host_sample


class Times(tuple[float, ...]):
    """psutil's named tuple of Linux: user and system count guests within them."""

    def __new__(cls, user: float, idle: float, iowait: float = 0.0, guest: float = 0.0) -> "Times":
        made = super().__new__(cls, (user, idle, iowait, guest))
        made.__dict__.update(idle=idle, iowait=iowait, guest=guest)
        return made


class FakePsutil:
    """Answers from a list of processor times; ``broken`` functions raise."""

    def __init__(self, *cpu_times: Times, broken: dict[str, Exception] | None = None) -> None:
        self._cpu_times = list(cpu_times)
        self._broken = broken or {}

    def __getattr__(self, function: str) -> Any:
        def call(**arguments: Any) -> Any:
            if function in self._broken:
                raise self._broken[function]
            return self._answer(function)

        return call

    def _answer(self, function: str) -> Any:
        if function == "cpu_times":
            return [self._cpu_times.pop(0) if len(self._cpu_times) > 1 else self._cpu_times[0]]
        return {
            "virtual_memory": SimpleNamespace(total=1000, available=300),
            "net_io_counters": {
                "lo": _traffic(7, 7),
                "eth0": _traffic(10, 20),
                "eth1": _traffic(1, 2),
            },
            "disk_io_counters": SimpleNamespace(read_bytes=5, write_bytes=6),
            "getloadavg": (1.5, 1.0, 0.5),
        }[function]


class Broken:
    """psutil where each function fails alike."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, function: str) -> Any:
        raise self._error


def _traffic(sent: int, received: int) -> SimpleNamespace:
    return SimpleNamespace(bytes_sent=sent, bytes_recv=received, packets_sent=1, packets_recv=1)


def host(*cpu_times: Times, broken: dict[str, Exception] | None = None) -> Host:
    source = PsutilSource(FakePsutil(*(cpu_times or (Times(0, 0),)), broken=broken))
    return Host(source, wall_clock=lambda: 5.0)


def of_host(reader: Host) -> HostSample:
    ((sample,), _, _) = reader.records()
    assert isinstance(sample, HostSample)
    return sample


def told(sample: HostSample, **expected: Any) -> dict[str, Any]:
    """What a sample has of the fields that are expected; a new reading leaves a test of others as it is."""
    return {name: getattr(sample, name) for name in expected}


def test_a_sample() -> None:
    expected = {
        "time_unix": 5.0,
        "cpu_fraction": 0.75,
        "memory_used_bytes": 700,
        "memory_total_bytes": 1000,
        "network_sent_bytes": 11,
        "network_received_bytes": 22,
        "loopback_sent_bytes": 7,
        "disk_read_bytes": 5,
        "disk_written_bytes": 6,
        "load_1_minute": 1.5,
    }
    assert told(of_host(host(Times(0, 0), Times(3, 1))), **expected) == expected


def test_cpu_fraction_is_that_between_two_samples() -> None:
    reader = host(Times(100, 100), Times(110, 100), Times(110, 130), Times(115, 145))
    assert [of_host(reader).cpu_fraction for _ in range(3)] == [1.0, 0.0, 0.25]


def test_waiting_for_disks_is_idle_and_guests_count_once() -> None:
    reader = host(Times(0, 0), Times(user=10, idle=5, iowait=5, guest=10))
    assert of_host(reader).cpu_fraction == 0.5


def test_no_time_between_two_readings_is_not_zero_but_unknown() -> None:
    assert of_host(host(Times(5, 5), Times(5, 5))).cpu_fraction is None


@pytest.mark.parametrize(
    "error", [psutil.AccessDenied(), PermissionError("hidden"), NotImplementedError("no")]
)
def test_each_reading_fails_by_itself_and_is_reported_once(error: Exception) -> None:
    reader = Host(PsutilSource(Broken(error)), wall_clock=lambda: 5.0)
    assert [of_host(reader), of_host(reader)] == [host_sample(time_unix=5.0)] * 2
    asked = ["cpu", "network", *(reading.name for reading in READINGS if reading.from_psutil)]
    assert sorted(reader.missing) == sorted(f"{name}: {error}" for name in asked)
    one = of_host(host(broken={"getloadavg": error}))
    assert (one.load_1_minute, one.disk_read_bytes) == (None, 5)


def names_of(missing: list[str]) -> set[str]:
    """The readings that lines about missing ones name."""
    return {line.split(":")[0] for line in missing}


def from_proc(folder: Path, **changes: str) -> ProcSource:
    write_proc(folder, **changes)
    return ProcSource(folder, block=folder / "block")


def test_every_core_and_interface_is_read_from_proc(tmp_path: Path) -> None:
    reader = Host(from_proc(tmp_path, stat=stat((100, 100), (0, 200))), wall_clock=lambda: 7.0)
    write_proc(tmp_path, stat=stat((130, 110), (0, 240)))
    (host_now,), cores, network = reader.records()
    assert cores == [CoreSample(7.0, 0, 0.75), CoreSample(7.0, 2, 0.0)]
    assert network == [NetworkSample(7.0, "lo", 7, 7, 1, 1), NetworkSample(7.0, "eth0", 10, 20, 3, 4)]
    assert isinstance(host_now, HostSample)
    expected = {
        "time_unix": 7.0,
        "cpu_fraction": 30 / 80,
        "memory_used_bytes": 700 * 1024,
        "memory_total_bytes": 1000 * 1024,
        "network_sent_bytes": 10,
        "network_received_bytes": 20,
        "loopback_sent_bytes": 7,
        "disk_read_bytes": 512 * 6,
        "disk_written_bytes": 512 * 8,
    }
    assert told(host_now, **expected) == expected
    assert not {"cpu", "network", "memory", "disk", "load"} & names_of(reader.missing)


def test_memory_and_disk_are_read_twice_a_second(tmp_path: Path) -> None:
    now = [0.0]
    reader = Host(from_proc(tmp_path), wall_clock=lambda: now[0])
    before = of_host(reader).memory_used_bytes
    write_proc(tmp_path, available_kib=100)
    found = []
    for now[0] in (0.1, 0.4, 0.5):
        found.append(of_host(reader).memory_used_bytes)
    assert found == [before, before, 900 * 1024]


def test_an_interface_that_stands_still_is_left_out_and_keeps_its_corner(tmp_path: Path) -> None:
    now = [0.0]
    reader = Host(from_proc(tmp_path), wall_clock=lambda: now[0])
    written = list(reader.records()[2])
    for now[0], sent in ((1.0, 10), (2.0, 10), (3.0, 50), (4.0, 90), (5.0, 90)):
        write_proc(tmp_path, eth0_sent=sent)
        written += reader.records()[2]
    found = [(row.time_unix, row.sent_bytes) for row in [*written, *reader.last()] if row.interface == "eth0"]  # type: ignore[union-attr]
    assert found == [(0.0, 10), (2.0, 10), (3.0, 50), (4.0, 90), (5.0, 90)]


def test_an_interface_that_goes_away_is_told_once_and_may_come_back(tmp_path: Path) -> None:
    reader = Host(from_proc(tmp_path))
    reader.records()
    write_proc(tmp_path, eth0_sent=None)
    assert [reader.records()[2], reader.records()[2]] == [[], []]
    assert [line for line in reader.missing if "eth0" in line] == ["network: interface eth0 went away"]
    write_proc(tmp_path, eth0_sent=1)
    assert [row.interface for row in reader.records()[2]] == ["eth0"]  # type: ignore[union-attr]


def test_files_that_cannot_be_read_are_none_and_told_once(tmp_path: Path) -> None:
    reader = Host(ProcSource(tmp_path, block=tmp_path), wall_clock=lambda: 5.0)
    nothing = dict.fromkeys(("cpu_fraction", "network_sent_bytes", "memory_used_bytes", "disk_read_bytes"))
    for _ in range(2):
        (sample,), cores, network = reader.records()
        assert (cores, network) == ([], [])
        assert told(sample, **nothing) == nothing  # type: ignore[arg-type]
    assert names_of(reader.missing) >= {"cpu", "disk", "memory", "network"}
    assert len(reader.missing) == len(names_of(reader.missing))
    assert all("No such file" in line for line in reader.missing)


def test_both_ways_of_reading_agree_on_this_machine() -> None:
    ours, theirs = ProcSource(), PsutilSource()
    memory = next(reading for reading in READINGS if reading.name == "memory")
    totals = [list(source.values(memory) or ())[1] for source in (ours, theirs)]
    assert totals[0] == totals[1] != 0
    assert ours.network().keys() == theirs.network().keys()
    assert ours.cpu()[1].keys() == theirs.cpu()[1].keys()
    ticks = psutil.cpu_times()
    assert ours.cpu()[0].busy / 100 == pytest.approx(theirs.cpu()[0].busy, rel=0.01)
    assert ours.cpu()[0].total / 100 == pytest.approx(sum(ticks) - ticks.guest - ticks.guest_nice, rel=0.01)


def test_bytes_that_are_sent_are_counted() -> None:
    source, payload = ProcSource(), bytes(100_000)
    before = source.network()["lo"]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sender:
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with receiver:
            sender.sendall(payload)
            received = 0
            while received < len(payload):
                received += len(receiver.recv(1 << 16))
    after = source.network()["lo"]
    assert isinstance(after, InterfaceCounters)
    assert after.sent_bytes - before.sent_bytes >= len(payload)
    assert after.sent_packets > before.sent_packets


def test_the_real_host() -> None:
    reader = Host()
    sum(range(2_000_000))
    (sample,), cores, network = reader.records()
    assert isinstance(sample, HostSample)
    assert sample.cpu_fraction is None or 0.0 <= sample.cpu_fraction <= 1.0
    assert sample.memory_used_bytes is not None and sample.memory_total_bytes is not None
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert len(cores) == psutil.cpu_count()
    assert "lo" in [row.interface for row in network]  # type: ignore[union-attr]
    reader.close()
