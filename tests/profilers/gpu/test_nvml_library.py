"""NVML as it is read through the real nvidia-ml-py, on a libnvidia-ml.so.1 of our own that is built here."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from profilers.analysis.machine import driver_failures
from profilers.gpu.nvml import Nvml
from profilers.records.reader import RunRecords
from tests.support.approximate import about
from tests.support.gpu.fake_nvml import FakeNvml
from tests.support.gpu.nvml_library import build
from tests.support.gpu.nvml_library.scenario import GIB, Scenario
from tests.support.gpu.nvml_library.session import Session
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(build.WHY_NONE is not None, reason=str(build.WHY_NONE))

LAYOUT = "import sys, ctypes as c; f = c.CDLL(sys.argv[1]).library_layouts; f.restype = c.c_char_p; print(f().decode())"
NO_PERMISSION, NOT_SUPPORTED, DRIVER_NOT_LOADED, LOST = 4, 3, 9, 15


@pytest.fixture
def driver(tmp_path: Path) -> Scenario:
    """Eight H100s."""
    return Scenario(tmp_path)


def watts(ask: Session, gpus: int = 8) -> list[float | None]:
    """What each GPU draws, as it is read."""
    return [ask(f"sample({gpu}).get('power_watts')") for gpu in range(gpus)]


def test_structures_lie_in_memory_as_nvidia_ml_py_s_do() -> None:
    # In a process of its own: once loaded here, it would be this machine's NVML for all later tests.
    command = [sys.executable, "-c", LAYOUT, str(build.folder(570) / build.NAME)]
    for line in subprocess.check_output(command, text=True).strip().splitlines():
        name, size, *places = line.split()
        structure = getattr(pynvml, name, None) or getattr(pynvml, f"c_{name}")
        found = dict(zip(places[::2], map(int, places[1::2]), strict=True))
        assert found == {field: getattr(structure, field).offset for field, *_ in structure._fields_}, name
        if name == "nvmlGpmMetricsGet_t":  # whose array is as long as a header knows metrics
            assert int(size) == found["metrics"]
        else:
            assert int(size) == ctypes.sizeof(structure), name


def test_a_sample_through_the_real_package(driver: Scenario) -> None:
    """The counters grow with time, which passes in the driver; all else is exact."""
    driver.processes(3, (4242, 3 * GIB), (99, None), (4243, GIB))
    with Session(driver) as ask:
        ask("setattr(library, 'ranks', frozenset({4242, 4243}))")
        first = ask("sample(3)")
        time.sleep(0.02)  # what the driver's counters measure
        ask("wait(1.0)")
        told = ask("sample(3)")
        assert ask("library.missing") == []
        assert ask("library.identity(3).as_dict()") == {
            "gpu": 3,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": driver.uuid(3),
            "pci_bus_id": "00000000:4C:00.0",
        }
    grown = {
        name: told.pop(name) - first[name] for name in ("energy_joules", "nvlink_tx_bytes", "nvlink_rx_bytes")
    }
    assert grown["energy_joules"] >= 430 * 0.02 * 0.9
    assert grown["nvlink_tx_bytes"] >= 18 * GIB * 0.02 * 0.9
    assert told == about(
        {
            "time_unix": 5.0,
            "gpu": 3,
            "utilization_fraction": 0.93,
            "memory_utilization_fraction": 0.4,
            "memory_used_bytes": 23 * GIB,
            "memory_total_bytes": 80 * GIB,
            "power_watts": 430.0,
            "power_limit_watts": 700.0,
            "temperature_celsius": 53.0,
            "slowdown_celsius": 53 + 37 + 2,
            "sm_clock_mhz": 1830.0,
            "sm_clock_max_mhz": 1980.0,
            "memory_clock_mhz": 2619.0,
            "throttle_reasons": 0,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
            "processes": 3,
            "ranks_memory_bytes": 4 * GIB,
            "sm_active_fraction": 0.8,
            "sm_occupancy_fraction": 0.25,
            "tensor_active_fraction": 0.6,
            "dram_active_fraction": 0.45,
            "pcie_tx_bytes_per_second": 1000 * 2**20,
            "pcie_rx_bytes_per_second": 2000 * 2**20,
            "nvlink_rx_bytes_per_second": 30_000 * 2**20,
            "nvlink_tx_bytes_per_second": 40_000 * 2**20,
        }
    )


def test_a_gpu_that_falls_off_the_bus_leaves_its_number_and_not_its_name(driver: Scenario) -> None:
    """A new start of the library counts seven, and numbers those behind it anew: they are found by their UUIDs."""
    all_of_it = [400.0 + 10 * gpu for gpu in range(8)]
    with Session(driver) as ask:
        assert watts(ask) == all_of_it
        driver.change(2, lost=LOST)
        without = [*all_of_it[:2], None, *all_of_it[3:]]
        assert watts(ask) == without
        assert ask("sample(2)") == {"time_unix": 5.0, "gpu": 2}
        [[kind, data]] = ask("library.error_transitions()")
        assert (kind, data["gpu"], data["error"]) == ("gpu_error", 2, "GPU is lost")
        driver.change(2, enumerated=0)
        ask("wait(5.0)")
        assert watts(ask) == without
        assert ask("pynvml.nvmlDeviceGetCount()") == 7, "the library was started anew"
        assert ask("library.error_transitions()") == []
        driver.change(2, enumerated=1, lost=0)
        ask("wait(10.0)")  # each new start is waited for twice as long
        assert watts(ask) == all_of_it
        assert ask("library.error_transitions()") == [["gpu_recovered", {"gpu": 2}]]


def test_a_gpu_that_was_lost_from_the_start_does_not_take_its_neighbour_s_readings(driver: Scenario) -> None:
    driver.change(2, lost=LOST)
    with Session(driver) as ask:
        assert ask("library.device_count") == 8
        before = watts(ask)
        driver.change(2, enumerated=0)
        ask("wait(5.0)")
        assert watts(ask)[3:] == before[3:]
        assert watts(ask)[2] is None
        assert [kind for kind, _ in ask("library.error_transitions()")] == ["gpu_error"]


def test_a_driver_of_2018(tmp_path: Path) -> None:
    """Branch 418 lacks symbols that nvidia-ml-py looks for, of which it raises more than one kind of exception."""
    with Session(Scenario(tmp_path, gpus=2, branch=418)) as ask:
        ask("library.device_count")
        told = ask("sample(0) | sample(0)")
        missed = [line.partition(":")[0] for line in ask("library.missing")]
    assert (told["power_watts"], told["temperature_celsius"]) == (400.0, 50.0)
    assert (told["throttle_reasons"], told["pcie_tx_bytes_per_second"]) == (0, 1_000_000)
    assert not told.keys() & {"processes", "sm_active_fraction", "slowdown_celsius"}
    assert sorted(missed) == [
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlGpmQueryDeviceSupport",
    ]


def test_a_driver_without_what_is_deprecated_today(tmp_path: Path) -> None:
    with Session(Scenario(tmp_path, gpus=1, branch=700)) as ask:
        told = ask("sample(0)")
        assert ask("library.missing") == []
    assert (told["temperature_celsius"], told["slowdown_celsius"], told["throttle_reasons"]) == (50, 89, 0)


def test_what_a_user_may_not_read_is_none_and_the_rest_is_there(driver: Scenario) -> None:
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlGpmSampleGet", "nvmlDeviceGetUUID"):
        driver.fail(function, NO_PERMISSION, gpu=0)
    driver.fail("nvmlDeviceGetComputeRunningProcesses_v3", NO_PERMISSION)
    with Session(driver) as ask:
        poor, rich = ask("sample(0) | sample(0)"), ask("sample(1) | sample(1)")
        assert ask("library.error_transitions()") == []
    gpm = {name for name in rich if name.endswith(("active_fraction", "occupancy_fraction"))}
    assert rich.keys() - poor.keys() >= gpm | {"memory_used_bytes", "memory_total_bytes"}
    assert "processes" not in rich
    assert poor["power_watts"] == 400.0


def test_no_driver_and_a_driver_that_comes_back(driver: Scenario) -> None:
    driver.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with Session(driver) as ask:
        assert "Driver Not Loaded" in ask("library.reason")
        assert ask("library.device_count") == 0
        driver.fail("nvmlInitWithFlags", 0)
        ask("library.close()")
        assert (ask("library.reason"), ask("library.device_count")) == (None, 8)


def test_each_field_value_has_a_return_code_of_its_own(driver: Scenario) -> None:
    driver.change(0, links=4, link_kib_per_second=0)
    driver.change(1, links=0)
    listed = "[value.nvmlReturn for value in pynvml.nvmlDeviceGetFieldValues({}, {})]"
    links = [(138, 0), (138, 3), (138, 4), (139, 2**32 - 1), (91, 0), (307, 0)]
    with Session(driver) as ask:
        ask("pynvml.nvmlInit()")
        assert ask(listed.format("pynvml.nvmlDeviceGetHandleByIndex(0)", links)) == [0, 0, 2, 0, 0, 2]
        assert (ask("sample(0)")["nvlink_tx_bytes"], "nvlink_tx_bytes" in ask("sample(1)")) == (0, False)


def test_the_library_is_as_strict_as_the_driver(driver: Scenario) -> None:
    """Versions carry the structure's size; a handle of before a shutdown is none."""
    of_gpu = "[{} for gpu in [pynvml.nvmlDeviceGetHandleByIndex(0)]][0]".format
    memory = "pynvml.nvmlDeviceGetMemoryInfo(gpu, {}).total".format
    with Session(driver) as ask:
        ask("pynvml.nvmlInit()")
        assert ask(of_gpu(memory("pynvml.nvmlMemory_v2"))) == 80 * GIB
        assert ask(of_gpu("pynvml.nvmlDeviceGetMarginTemperature(gpu)")) == 37
        wrong_versions = [
            *(memory(f"pynvml.nvmlMemory_v2 + {more}") for more in (8, 1 << 24)),
            "pynvml.nvmlGpmMetricsGet(pynvml.c_nvmlGpmMetricsGet_t())",
        ]
        for wrong in wrong_versions:
            with pytest.raises(RuntimeError, match="ArgumentVersionMismatch"):
                ask(of_gpu(wrong))
        with pytest.raises(RuntimeError, match="InvalidArgument"):
            ask(of_gpu("(pynvml.nvmlShutdown(), pynvml.nvmlInit(), pynvml.nvmlDeviceGetPowerUsage(gpu))"))


def test_a_gpu_in_parts(driver: Scenario) -> None:
    """Without privileges NVML tells the processes of each part, and of the whole neither those nor a load."""
    uuids = driver.divide(1, 3)
    driver.processes(1, (4242, 2 * GIB), instance=2)
    of_part = "pynvml.nvmlDeviceGetHandleByUUID({!r})"
    with Session(driver, CUDA_VISIBLE_DEVICES=uuids[1]) as ask:
        assert ask("visible()") == [None]
        whole = ask("sample(1) | sample(1)")
        assert (whole["power_watts"], whole["processes"]) == (410.0, 1)
        assert "utilization_fraction" not in whole
        pids = "[process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses({})]".format
        assert [ask(pids(of_part.format(uuid))) for uuid in uuids] == [[], [4242], []]
        parent = f"pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle({of_part.format(uuids[0])})"
        assert ask(f"pynvml.nvmlDeviceGetUUID({parent})") == driver.uuid(1)
        assert ask(f"pynvml.nvmlDeviceGetMemoryInfo({of_part.format(uuids[2])}).used") == 3 * GIB
    driver.change(1, privileged=0)
    with Session(driver) as ask:
        assert "processes" not in ask("sample(1)")
        assert ask("library.error_transitions()") == []


def test_a_tape_of_the_real_package_replays_the_same_samples(driver: Scenario, tmp_path: Path) -> None:
    """Also where a GPU is lost while it is recorded and the library started anew."""
    driver.change(1, link_kib_per_second=0, power_mw=None)
    with Session(driver) as ask:
        ask("record()")
        ask("library.device_count")
        heard = [ask("sample(1)"), ask("sample(1)")]
        driver.change(0, lost=LOST)
        lost = [ask("sample(0)"), ask("wait(5.0) or sample(0)")]
        anew = ask("sample(1)")
        ask(f"save({str(tmp_path / 'tape.json')!r})")
    now = itertools.count(100.0)
    again = Nvml(
        FakeNvml(path=tmp_path / "tape.json"), wall_clock=lambda: 5.0, clock=lambda: float(next(now))
    )
    replayed = [again.sample(1) for _ in range(2)]
    for expected, found in zip(heard, replayed, strict=True):
        assert {name: getattr(found, name) for name in expected} == expected
    assert lost == [{"time_unix": 5.0, "gpu": 0}] * 2
    assert anew["sm_clock_mhz"] == 1810


SAMPLE = """
import sys
from pathlib import Path
from profilers.system.sampler import Sampler
from profilers.records.writer import RecordWriter
with RecordWriter(Path(sys.argv[1]), "launcher") as writer:
    sampler = Sampler(writer, 0.02)
    sampler.watch([int(sys.argv[2])])
    with sampler:
        sys.stdin.read()
"""


def test_a_sampler_reads_all_of_them_and_tells_which_one_is_lost(driver: Scenario, tmp_path: Path) -> None:
    folder, ours = tmp_path / "records", os.getpid()
    folder.mkdir()
    driver.processes(5, (ours, 3 * GIB), (1, GIB))
    command = [sys.executable, "-c", SAMPLE, str(folder), str(ours)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=driver.environment) as process:
        assert wait_until(lambda: len(RunRecords(folder).table("launcher", "gpu")) >= 16)
        driver.change(6, lost=LOST)
        assert wait_until(lambda: bool(driver_failures(RunRecords(folder).events("launcher"))))
    assert process.returncode == 0
    records = RunRecords(folder)
    table = records.table("launcher", "gpu")
    of_gpu = [table.column("gpu") == gpu for gpu in range(8)]
    held = [set(table.column("ranks_memory_bytes")[own].compressed()) for own in of_gpu]
    assert held == [{3 * GIB} if gpu == 5 else set() for gpu in range(8)]
    drawn = [table.column("power_watts")[own] for own in of_gpu]
    assert [set(each.compressed()) for each in drawn] == [{400.0 + 10 * gpu} for gpu in range(8)]
    assert [gpu for gpu, each in enumerate(drawn) if each.mask[-1]] == [6]
    [line] = driver_failures(records.events("launcher"))
    assert line.startswith("GPU 6 did not answer nvml")
    assert line.endswith("GPU is lost; it has not answered since")
    [listed] = [event.data["gpus"] for event in records.events("launcher") if event.kind == "gpus"]
    assert [gpu["uuid"] for gpu in listed] == [driver.uuid(gpu) for gpu in range(8)]
