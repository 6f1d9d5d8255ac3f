"""Host readings from recorded psutil answers."""

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from profilers.host import Host
from profilers.records import HostSample
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
            return self._cpu_times.pop(0) if len(self._cpu_times) > 1 else self._cpu_times[0]
        return {
            "virtual_memory": SimpleNamespace(total=1000, available=300),
            "net_io_counters": {
                "lo": SimpleNamespace(bytes_sent=7, bytes_recv=7),
                "eth0": SimpleNamespace(bytes_sent=10, bytes_recv=20),
                "eth1": SimpleNamespace(bytes_sent=1, bytes_recv=2),
            },
            "disk_io_counters": SimpleNamespace(read_bytes=5, write_bytes=6),
            "getloadavg": (1.5, 1.0, 0.5),
        }[function]


def host(*cpu_times: Times, broken: dict[str, Exception] | None = None) -> Host:
    return Host(FakePsutil(*(cpu_times or (Times(0, 0),)), broken=broken), wall_clock=lambda: 5.0)


def test_a_sample() -> None:
    assert host(Times(0, 0), Times(3, 1)).sample() == HostSample(
        time_unix=5.0,
        cpu_fraction=0.75,
        memory_used_bytes=700,
        memory_total_bytes=1000,
        network_sent_bytes=11,
        network_received_bytes=22,
        loopback_sent_bytes=7,
        disk_read_bytes=5,
        disk_written_bytes=6,
        load_1_minute=1.5,
    )


def test_cpu_fraction_is_that_between_two_samples() -> None:
    reader = host(Times(100, 100), Times(110, 100), Times(110, 130), Times(115, 145))
    assert [reader.sample().cpu_fraction for _ in range(3)] == [1.0, 0.0, 0.25]


def test_waiting_for_disks_is_idle_and_guests_count_once() -> None:
    reader = host(Times(0, 0), Times(user=10, idle=5, iowait=5, guest=10))
    assert reader.sample().cpu_fraction == 0.5


def test_no_time_between_two_readings_is_not_zero_but_unknown() -> None:
    assert host(Times(5, 5), Times(5, 5)).sample().cpu_fraction is None


@pytest.mark.parametrize(
    "error", [psutil.AccessDenied(), PermissionError("hidden"), NotImplementedError("no")]
)
def test_each_reading_fails_by_itself_and_is_reported_once(error: Exception) -> None:
    functions = ["cpu_times", "virtual_memory", "disk_io_counters", "getloadavg", "net_io_counters"]
    reader = host(broken=dict.fromkeys(functions, error))
    assert [reader.sample(), reader.sample()] == [host_sample(time_unix=5.0)] * 2
    assert sorted(line.split(":")[0] for line in reader.missing) == sorted(functions)
    one = host(broken={"getloadavg": error}).sample()
    assert (one.load_1_minute, one.disk_read_bytes) == (None, 5)


def test_the_real_host() -> None:
    reader = Host()
    sum(range(2_000_000))
    sample = reader.sample()
    assert sample.cpu_fraction is None or 0.0 <= sample.cpu_fraction <= 1.0
    assert sample.memory_used_bytes is not None and sample.memory_total_bytes is not None
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
