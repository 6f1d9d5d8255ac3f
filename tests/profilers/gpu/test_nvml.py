"""NVML as it is read: a whole driver, a poor one, one that fails in the middle, and none.

The answers are those of tests/data/nvml_h100.json and nvml_v100.json. They say which numbers real GPUs gave (what
nvidia-smi -q printed on three hosts, and two values of GPM) and which are composed to calculate with.
"""

import sys
from dataclasses import MISSING, fields, make_dataclass
from pathlib import Path
from typing import get_type_hints

import pynvml
import pytest

from profilers.gpu.nvml import READ_SECONDS, Nvml
from profilers.records.codec import Encoder, Header, encode_header, fields_of, record_struct
from profilers.records.reader import RunRecords
from profilers.records.schema import GpuSample
from tests.support.approximate import about
from tests.support.gpu.fake_nvml import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    H100,
    NOT_SUPPORTED,
    Clock,
    FakeNvml,
    NVMLError,
    open_fake_nvml,
)
from tests.support.samples import gpu_sample

#: What is asked of a GPU; the rest opens and closes the library.
READINGS = sorted(
    name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet") and name != "nvmlDeviceGetCount"
)
NOT_THERE = NVMLError("Not Supported", NOT_SUPPORTED)
OLD_REASONS, NEW_REASONS = (
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetCurrentClocksEventReasons",
)


def test_a_sample_has_its_units() -> None:
    """GPU 0 is an H100 that its power supply brakes: 86 MHz of 1,980."""
    library, _, _ = open_fake_nvml()
    assert library.sample(0) == gpu_sample(
        0,
        time_unix=5.0,
        utilization_fraction=0.0,
        memory_used_bytes=552 * 2**20,
        memory_total_bytes=81_559 * 2**20,
        power_watts=about(67.74),
        energy_joules=about(98_765_432.1),
        temperature_celsius=29,
        sm_clock_mhz=86,
        throttle_reasons=0x88,
        memory_utilization_fraction=0.0,
        memory_clock_mhz=2619,
        power_limit_watts=700,
        slowdown_celsius=29 + 56 + 2,
        sm_clock_max_mhz=1980,
        nvlink_tx_bytes=1024 * sum(1_000_000 + link for link in range(18)),
        nvlink_rx_bytes=1024 * sum(2_000_000 + link for link in range(18)),
        ecc_corrected=0,
        ecc_uncorrected=0,
        processes=2,
    )
    assert library.missing == []


def test_without_gpm_the_pcie_counters_are_watched_one_gpu_after_the_other() -> None:
    library, module, clock = open_fake_nvml({"nvmlGpmQueryDeviceSupport": NOT_THERE})
    assert library.device_count == 2
    first = [library.sample(gpu).pcie_tx_bytes_per_second for gpu in (0, 1)]
    clock.now += READ_SECONDS / 2
    second = [library.sample(gpu).pcie_rx_bytes_per_second for gpu in (0, 1)]
    assert (first, second) == ([3_875_000, None], [None, 2_593_000])
    assert module.calls.count("nvmlDeviceGetPcieThroughput") == 4


def test_limits_and_counters_are_read_once_a_second() -> None:
    library, module, clock = open_fake_nvml()
    seen = []
    for _ in range(21):
        seen.append(library.sample(0))
        clock.now += 0.1
    assert module.calls.count("nvmlDeviceGetEnforcedPowerLimit") in (2, 3)
    assert module.calls.count("nvmlDeviceGetPowerUsage") == 21
    assert all((sample.power_limit_watts is None) == (sample.ecc_corrected is None) for sample in seen)


def test_the_ranks_own_memory_is_told_apart() -> None:
    library, _, clock = open_fake_nvml()
    library.ranks = frozenset({4243, 99})
    assert (library.sample(0).processes, library.sample(1).processes) == (2, 0)
    clock.now += READ_SECONDS
    assert library.sample(0).ranks_memory_bytes == 524_288_000


def test_old_drivers_know_the_old_name_of_the_reasons() -> None:
    library, module, _ = open_fake_nvml({NEW_REASONS: NVMLError("Function Not Found", FUNCTION_NOT_FOUND)})
    module.answers[OLD_REASONS] = {"[0]": [4]}
    assert library.sample(0).throttle_reasons == 4
    assert library.missing == []


def test_an_old_driver_and_gpu() -> None:
    """A V100 on driver 418: no GPM, no margin, absolute thresholds, no NVLink counters: told once."""
    module = FakeNvml(path=H100.with_name("nvml_v100.json"))
    library = Nvml(module, wall_clock=lambda: 5.0, clock=Clock())
    sample = library.sample(0)
    library.sample(0)
    assert sample == gpu_sample(
        0,
        time_unix=5.0,
        utilization_fraction=0.0,
        memory_used_bytes=10 * 2**20,
        memory_total_bytes=32_480 * 2**20,
        power_watts=about(39.78),
        energy_joules=4000,
        temperature_celsius=38,
        sm_clock_mhz=135,
        throttle_reasons=1,
        pcie_tx_bytes_per_second=0,
        pcie_rx_bytes_per_second=0,
        memory_utilization_fraction=0.0,
        memory_clock_mhz=877,
        power_limit_watts=300,
        slowdown_celsius=87,
        sm_clock_max_mhz=1530,
        ecc_corrected=0,
        ecc_uncorrected=0,
        processes=0,
    )
    assert library.missing == [
        "nvmlDeviceGetUUID: not in the recording: nvmlDeviceGetUUID[0]",
        "nvmlGpmQueryDeviceSupport: Function Not Found",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: NVML error 3",
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: NVML error 3",
    ]
    assert module.calls.count("nvmlGpmQueryDeviceSupport") == 1


def test_what_the_machine_has() -> None:
    library, _, _ = open_fake_nvml()
    assert (library.reason, library.device_count, library.driver_version) == (None, 2, "535.161.08")
    assert library.name(1) == "NVIDIA H100 80GB HBM3"


def test_nothing_is_asked_before_the_first_question_and_init_happens_once() -> None:
    library, module, _ = open_fake_nvml()
    assert module.calls == []
    library.sample(0)
    library.sample(0)
    assert module.calls.count("nvmlInit") == 1
    assert module.calls.count("nvmlDeviceGetHandleByIndex") == 1


@pytest.mark.parametrize("error", [NOT_THERE, AttributeError("gone"), OSError("ioctl")])
def test_nothing_answers(error: Exception) -> None:
    library, _, _ = open_fake_nvml(
        dict.fromkeys([*READINGS, OLD_REASONS, "nvmlGpmQueryDeviceSupport"], error)
    )
    samples = [library.sample(0), library.sample(1), library.sample(0)]
    assert samples == [gpu_sample(gpu, time_unix=5.0) for gpu in (0, 1, 0)]
    names = [line.split(":")[0] for line in library.missing]
    assert len(names) == len(set(names))
    assert "nvmlDeviceGetPowerUsage" in names


@pytest.mark.parametrize("function", READINGS)
@pytest.mark.parametrize("error", [NOT_THERE, AttributeError("gone"), NVMLError("odd", 77)], ids=str)
def test_each_missing_function_leaves_the_others_and_is_reported_once(
    function: str, error: Exception
) -> None:
    library, module, clock = open_fake_nvml({function: error})
    whole = Nvml(FakeNvml(), wall_clock=lambda: 5.0, clock=clock)
    for _ in range(3):
        clock.now += READ_SECONDS
        poor, rich = library.sample(0), whole.sample(0)
        known, all_of_it = library.identity(0).as_dict(), whole.identity(0).as_dict()
        assert len(dict(known.items() ^ all_of_it.items())) <= 1
        lost = [name for name in GpuSample.__dataclass_fields__ if getattr(poor, name) != getattr(rich, name)]
        assert len(lost) <= 3
    alternatives = {"nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetPcieThroughput"}
    told = [line.split(":")[0] for line in library.missing].count(function)
    assert told == (function not in alternatives)
    if function not in alternatives and not isinstance(error, AttributeError):
        # What a driver does not have is asked for once of each argument; what only failed is asked for again.
        assert module.calls.count(function) <= (3 if error is NOT_THERE else 12)


def test_the_driver_s_own_not_available_is_none() -> None:
    library, module, _ = open_fake_nvml()
    module.answers["nvmlDeviceGetPowerUsage"] = {"[0]": [2**32 - 1], "[1]": [0]}
    assert library.sample(0).power_watts is None
    assert library.sample(1).power_watts == 0.0
    assert library.missing == ["nvmlDeviceGetPowerUsage: value not available"]


def test_a_gpu_that_is_not_there() -> None:
    library, _, _ = open_fake_nvml()
    assert library.sample(7) == gpu_sample(7, time_unix=5.0)
    assert library.name(7) is None
    assert library.missing == ["nvmlDeviceGetHandleByIndex: Invalid Argument"]


def test_no_driver() -> None:
    library, _, _ = open_fake_nvml({"nvmlInit": NVMLError("NVML Shared Library Not Found")})
    assert library.reason is not None
    assert "NVML Shared Library Not Found" in library.reason
    assert "\n" not in library.reason
    assert (library.device_count, library.driver_version, library.name(0)) == (0, None, None)
    assert library.sample(0) == gpu_sample(0, time_unix=5.0)
    assert library.error_transitions() == []
    library.close()


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().reason == "the Python package nvidia-ml-py is not installed"
    assert Nvml().device_count == 0


def test_the_real_library_gives_a_reason_or_gpus() -> None:
    library = Nvml()
    assert (library.reason is None) or (library.device_count == 0 and library.reason.endswith("?"))
    if library.reason is None:
        assert library.sample(0).memory_total_bytes
    library.close()


def test_the_real_library_s_errors_carry_the_numbers_that_decide() -> None:
    numbers = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST)
    assert tuple(pynvml.NVMLError(number).value for number in numbers) == numbers
    assert str(pynvml.NVMLError(GPU_IS_LOST))


def test_after_close_a_question_opens_it_again() -> None:
    library, module, _ = open_fake_nvml()
    assert library.device_count == 2
    library.close()
    assert module.calls[-1] == "nvmlShutdown"
    assert library.sample(0).sm_clock_mhz == 86
    assert module.calls.count("nvmlInit") == 2


def test_handles_do_not_outlive_the_driver() -> None:
    library, module, _ = open_fake_nvml()
    library.sample(0)
    library.close()
    library.sample(0)
    assert module.calls.count("nvmlDeviceGetHandleByIndex") == 1
    assert module.calls.count("nvmlDeviceGetHandleByUUID") == 1


def test_a_file_of_a_version_that_knew_less_is_read(tmp_path: Path) -> None:
    """Its records lack the fields that have a default, which came later; those are None."""
    first = [one.name for one in fields(GpuSample) if one.default is MISSING]
    old = make_dataclass("GpuSample", [(name, get_type_hints(GpuSample)[name]) for name in first])
    layout = fields_of(old)
    header = Header("gpu", "launcher", 1, "host", 0.0, record_struct(layout).size, layout)
    values = {field.name: None for field in layout} | {"time_unix": 5.0, "gpu": 1, "power_watts": 300.0}
    record = Encoder(old, {}).encode(old(**values))
    (tmp_path / "launcher.gpu").write_bytes(encode_header(header) + record)
    expected = gpu_sample(1, time_unix=5.0, power_watts=300.0)
    assert RunRecords(tmp_path).table("launcher", "gpu").rows() == [expected]
