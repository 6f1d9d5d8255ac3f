"""A driver that answers an error in the middle of a run: told once, and read again when it recovers."""

from tests.support.gpu.fake_nvml import GPU_IS_LOST, NVMLError, nvml_door
from tests.support.samples import gpu_sample


def test_one_error_in_the_middle_is_told_once_and_what_answers_again_is_read_again() -> None:
    door, module, clock = nvml_door()
    assert door.sample(0).power_watts is not None
    module.broken["nvmlDeviceGetPowerUsage"] = NVMLError("Timeout", 10)
    for _ in range(3):
        assert door.sample(0).power_watts is None
        assert door.sample(0).temperature_celsius == 29
    told = door.error_transitions()
    assert told == [("gpu_error", {"gpu": 0, "function": "nvmlDeviceGetPowerUsage", "error": "Timeout"})]
    assert door.error_transitions() == []
    del module.broken["nvmlDeviceGetPowerUsage"]
    clock.now += 0.1
    assert door.sample(0).power_watts is not None
    assert door.error_transitions() == [("gpu_recovered", {"gpu": 0})]


def test_a_lost_gpu_is_read_again_after_nvml_was_started_anew() -> None:
    door, module, clock = nvml_door()
    door.sample(0)
    clock.now += 0.1
    assert door.sample(0).sm_active_fraction is not None
    module.lost = NVMLError("GPU is lost", GPU_IS_LOST)
    for _ in range(10):
        clock.now += 0.1
        assert door.sample(0) == gpu_sample(0, time_unix=5.0)
    [(kind, data)] = door.error_transitions()
    assert (kind, data["error"]) == ("gpu_error", "GPU is lost")
    assert module.calls.count("nvmlInit") == 1
    clock.now += 5.0
    assert door.sample(0).power_watts is not None
    assert module.calls.count("nvmlInit") == 2
    assert door.error_transitions() == [("gpu_recovered", {"gpu": 0})]
    clock.now += 0.1
    assert door.sample(0).sm_active_fraction is not None


def test_a_driver_that_is_gone_for_a_while() -> None:
    door, module, clock = nvml_door()
    door.sample(0)
    module.lost = NVMLError("Driver Not Loaded", 9)
    door.sample(0)
    module.broken["nvmlInit"] = NVMLError("Driver Not Loaded", 9)
    tries = []
    for _ in range(60):
        clock.now += 5.0
        tries.append(module.calls.count("nvmlInit"))
        assert door.sample(0) == gpu_sample(0, time_unix=5.0)
    assert [kind for kind, _ in door.error_transitions()] == ["gpu_error"]
    assert tries[:4] == [1, 2, 2, 3], "waits of 5, 10, 20 ... seconds"
    assert tries[-1] - tries[-13] == 1, "and never more than a minute"
    del module.broken["nvmlInit"]
    clock.now += 60.0
    assert door.sample(0).temperature_celsius == 29
    assert [kind for kind, _ in door.error_transitions()] == ["gpu_recovered"]
