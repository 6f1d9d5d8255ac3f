"""The sampler: steady ticks, what it writes, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from profilers.gpu.nvml import Nvml
from profilers.records.reader import RunRecords
from profilers.records.schema import Event, FixedRecord, NetworkSample
from profilers.records.writer import RecordWriter
from profilers.system.host import Host
from profilers.system.sampler import Sampler, Schedule
from tests.support.gpu.fake_nvml import FakeNvml, NVMLError
from tests.support.samples import host_sample
from tests.support.waiting import wait_until


class FakeTime:
    """A monotonic clock that only moves when somebody waits or works; it ends after ``ticks`` waits."""

    def __init__(self, ticks: int, late_seconds: float = 0.0) -> None:
        self.now = 1000.0
        self.left = ticks
        self.late_seconds = late_seconds

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds + self.late_seconds
        self.left -= 1
        return self.left == 0


class SlowHost(Host):
    """Each sample takes some seconds of the fake time and notes when it began."""

    def __init__(self, fake: FakeTime, *seconds: float) -> None:
        self.fake, self.seconds, self.began = fake, list(seconds), list[float]()

    @property
    def missing(self) -> list[str]:
        return []

    def records(self) -> list[Sequence[FixedRecord]]:
        self.began.append(self.fake.now - 1000.0)
        self.fake.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return [[host_sample()]]

    def last(self) -> list[NetworkSample]:
        return []

    def close(self) -> None:
        pass


def sampled(folder: Path, fake: FakeTime, host: Host, nvml: Nvml | None = None) -> Sampler:
    with RecordWriter(folder, "launcher") as writer:
        sampler = Sampler(writer, 0.5, host, nvml or Nvml(FakeNvml(gpus=0)), fake.clock, fake.wait)
        with sampler:
            sampler._thread.join(10)
    return sampler


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in RunRecords(folder).events("launcher") if event.kind == kind]


def test_ticks_do_not_drift(tmp_path: Path) -> None:
    fake = FakeTime(ticks=1000, late_seconds=0.003)
    host = SlowHost(fake, 0.1)
    sampler = sampled(tmp_path, fake, host)
    assert host.began == pytest.approx([0.0] + [0.5 * tick + 0.003 for tick in range(1, 1001)])
    assert sampler.skipped == 0


def test_a_slow_sample_skips_ticks_and_keeps_the_beat(tmp_path: Path) -> None:
    fake = FakeTime(ticks=3)
    host = SlowHost(fake, 0.1, 1.7, 0.1)
    sampler = sampled(tmp_path, fake, host)
    assert host.began == pytest.approx([0.0, 0.5, 2.5, 3.0])
    assert sampler.skipped == 3
    assert events(tmp_path, "sampler")[0].data["skipped"] == 3


def test_schedule_refuses_an_interval_without_length() -> None:
    with pytest.raises(ValueError, match="interval_seconds is 0"):
        Schedule(0)


def test_host_and_every_gpu_are_sampled(tmp_path: Path) -> None:
    fake = FakeTime(ticks=2)
    sampled(tmp_path, fake, SlowHost(fake, 0.1), Nvml(FakeNvml()))
    records = RunRecords(tmp_path)
    assert records.table("launcher", "gpu").column("gpu").tolist() == [0, 1] * 3
    assert len(records.table("launcher", "host")) == 3
    assert not events(tmp_path, "nvml_unavailable")
    (event,) = events(tmp_path, "gpus")
    told = [(gpu["gpu"], gpu["uuid"], gpu["pci_bus_id"]) for gpu in event.data["gpus"]]
    assert event.data["host"] == socket.gethostname()
    assert told == [
        (0, "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa", "00000000:19:00.0"),
        (1, "GPU-47daa2ad-a218-6286-252b-af45f0dfaf00", "00000000:3B:00.0"),
    ]


def test_without_nvml_one_event_says_why(tmp_path: Path) -> None:
    fake = FakeTime(ticks=5)
    broken = Nvml(FakeNvml({"nvmlInit": NVMLError("Driver Not Loaded")}))
    sampled(tmp_path, fake, SlowHost(fake, 0.1), broken)
    found = events(tmp_path, "nvml_unavailable")
    assert len(found) == 1
    assert "Driver Not Loaded" in found[0].data["reason"]
    assert len(RunRecords(tmp_path).table("launcher", "gpu")) == 0


def test_missing_readings_are_noted_once(tmp_path: Path) -> None:
    fake = FakeTime(ticks=3)
    poor = Nvml(FakeNvml({"nvmlDeviceGetPowerUsage": NVMLError("Not Supported")}))
    sampled(tmp_path, fake, SlowHost(fake, 0.1), poor)
    (event,) = events(tmp_path, "readings_missing")
    assert event.data["functions"] == ["nvmlDeviceGetPowerUsage: Not Supported"]


def test_in_real_time_it_samples_at_once_and_at_the_end(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "launcher") as writer:
        before = time.monotonic()
        with Sampler(writer, 30.0, library=Nvml(FakeNvml(gpus=0))) as sampler:
            pass
        assert time.monotonic() - before < 5
    assert len(RunRecords(tmp_path).table("launcher", "host")) == 2
    assert 0 < sampler.cpu_seconds < 1
    assert not sampler._thread.is_alive()


def test_stopping_what_never_began_does_nothing(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "launcher") as writer:
        Sampler(writer, library=Nvml(FakeNvml())).stop()
    assert not list(tmp_path.iterdir())


SAMPLE = """
import sys, time
from pathlib import Path
from profilers.system.sampler import Sampler
from profilers.records.writer import RecordWriter
with RecordWriter(Path(sys.argv[1]), "launcher") as writer:
    sampler = Sampler(writer, 0.01)
    sampler.watch([int(sys.argv[2])])
    with sampler:
        time.sleep(float(sys.argv[3]))
"""


def sampling(folder: Path, seconds: float, *before: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", SAMPLE, str(folder), str(os.getpid()), str(seconds)]
    )


def test_what_was_sampled_outlives_a_killed_sampler(tmp_path: Path) -> None:
    process = sampling(tmp_path, 60)
    wait_until(lambda: len(RunRecords(tmp_path).table("launcher", "process")) > 10)
    before = {name: len(RunRecords(tmp_path).table("launcher", name)) for name in ("host", "core", "process")}
    process.send_signal(signal.SIGKILL)
    process.wait()
    records = RunRecords(tmp_path)
    for name, count in before.items():
        table = records.table("launcher", name)
        assert len(table) >= count
        assert not table.column("time_unix").mask.any()
    assert records.problems == []


def test_where_proc_only_shows_processes_the_rest_is_none_and_told_once(tmp_path: Path) -> None:
    hide = 'mount -t proc -o subset=pid proc /proc && exec "$@"'
    inside = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", hide, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a test mount /proc (CAP_SYS_ADMIN)")
    assert sampling(tmp_path, 0.3, *inside).wait() == 0
    records = RunRecords(tmp_path)
    host = records.table("launcher", "host")
    assert len(host) > 3
    assert host.column("cpu_fraction").mask.all()
    assert host.column("memory_used_bytes").mask.all()
    told = [line for event in events(tmp_path, "readings_missing") for line in event.data["functions"]]
    assert len(told) == len(set(told))
    assert {"cpu", "memory", "network"} <= {line.split(":")[0] for line in told}


def test_it_tells_what_each_part_cost(tmp_path: Path) -> None:
    fake = FakeTime(ticks=5)
    sampled(tmp_path, fake, SlowHost(fake, 0.01))
    (event,) = events(tmp_path, "sampler")
    assert event.data["parts"]["host"]["readings"] == 6
    assert 0 < event.data["parts"]["host"]["cpu_seconds"] <= event.data["cpu_seconds"]
