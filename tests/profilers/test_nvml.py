"""The door to NVML: a whole driver, a poor one, and none."""

import sys
from typing import Any

import pytest

from profilers.nvml import Nvml
from profilers.records import GpuSample
from tests.support.approximate import about
from tests.support.fake_nvml import ANSWERS, FakeNvml, NVMLError
from tests.support.samples import gpu_sample

NOT_SUPPORTED = NVMLError("Not Supported")


def nvml(broken: dict[str, Exception] | None = None, **kwargs: Any) -> tuple[Nvml, FakeNvml]:
    module = FakeNvml(broken, **kwargs)
    return Nvml(module, wall_clock=lambda: 5.0), module


def test_a_sample_has_its_units() -> None:
    door, _ = nvml()
    assert door.sample(0) == GpuSample(
        time_unix=5.0,
        gpu=0,
        utilization_fraction=about(0.87),
        memory_used_bytes=90_000_000_000,
        memory_total_bytes=150_000_000_000,
        power_watts=about(612.345),
        energy_joules=about(98_765_432.1),
        temperature_celsius=61,
        sm_clock_mhz=1980,
        throttle_reasons=4,
        pcie_tx_bytes_per_second=2_000_000,
        pcie_rx_bytes_per_second=31_000_000,
    )
    assert door.missing == []


def test_what_the_machine_has() -> None:
    door, _ = nvml()
    assert (door.reason, door.device_count, door.driver_version) == (None, 2, "570.86.15")
    assert [door.name(0), door.name(1)] == ["NVIDIA H200", "NVIDIA H200"]


def test_nothing_is_asked_before_the_first_question_and_init_happens_once() -> None:
    door, module = nvml()
    assert module.calls == []
    door.sample(0)
    door.sample(0)
    assert module.calls.count("nvmlInit") == 1
    assert module.calls.count("nvmlDeviceGetHandleByIndex") == 1


@pytest.mark.parametrize("error", [NOT_SUPPORTED, AttributeError("gone"), OSError("ioctl")])
def test_each_missing_function_is_none_and_reported_once(error: Exception) -> None:
    functions = [name for name in ANSWERS if name != "nvmlDeviceGetName"]
    door, _ = nvml(dict.fromkeys(functions, error))
    samples = [door.sample(0), door.sample(1), door.sample(0)]
    assert samples == [gpu_sample(gpu, time_unix=5.0) for gpu in (0, 1, 0)]
    assert sorted(line.split(":")[0] for line in door.missing) == sorted(functions)


def test_one_missing_function_leaves_the_others() -> None:
    door, _ = nvml({"nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED})
    sample = door.sample(0)
    assert (sample.energy_joules, sample.power_watts) == (None, about(612.345))
    assert door.missing == ["nvmlDeviceGetTotalEnergyConsumption: Not Supported"]


def test_the_driver_s_own_not_available_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "nvmlDeviceGetPowerUsage", [2**32 - 1, 0])
    door, _ = nvml()
    assert door.sample(0).power_watts is None
    assert door.sample(1).power_watts == 0.0
    assert door.missing == ["nvmlDeviceGetPowerUsage: value not available"]


def test_a_gpu_that_is_not_there() -> None:
    door, _ = nvml()
    assert door.sample(7) == gpu_sample(7, time_unix=5.0)
    assert door.name(7) is None
    assert door.missing == ["nvmlDeviceGetHandleByIndex: Invalid Argument"]


def test_no_driver() -> None:
    door, _ = nvml({"nvmlInit": NVMLError("NVML Shared Library Not Found")})
    assert door.reason is not None
    assert "NVML Shared Library Not Found" in door.reason
    assert "\n" not in door.reason
    assert (door.device_count, door.driver_version, door.name(0)) == (0, None, None)
    assert door.sample(0) == gpu_sample(0, time_unix=5.0)
    door.close()


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().reason == "the Python package nvidia-ml-py is not installed"
    assert Nvml().device_count == 0


def test_the_real_library_gives_a_reason_or_gpus() -> None:
    door = Nvml()
    assert (door.reason is None) or (door.device_count == 0 and door.reason.endswith("?"))
    if door.reason is None:
        assert door.sample(0).memory_total_bytes
    door.close()


def test_after_close_a_question_opens_it_again() -> None:
    door, module = nvml()
    assert door.device_count == 2
    door.close()
    assert module.calls[-1] == "nvmlShutdown"
    assert door.sample(0).sm_clock_mhz == 1980
    assert module.calls.count("nvmlInit") == 2


def test_handles_do_not_outlive_the_driver() -> None:
    door, module = nvml()
    door.sample(0)
    door.close()
    door.sample(0)
    assert module.calls.count("nvmlDeviceGetHandleByIndex") == 2
