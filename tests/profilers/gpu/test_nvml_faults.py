"""A driver that answers an error in the middle of a run: told once, and read again when it recovers."""

from tests.support.gpu.fake_nvml import GPU_IS_LOST, NVMLError, open_fake_nvml
from tests.support.samples import gpu_sample


def test_one_error_in_the_middle_is_told_once_and_what_answers_again_is_read_again() -> None:
    library, module, clock = open_fake_nvml()
    assert library.sample(0).power_watts is not None
    module.broken["nvmlDeviceGetPowerUsage"] = NVMLError("Timeout", 10)
    for _ in range(3):
        assert library.sample(0).power_watts is None
        assert library.sample(0).temperature_celsius == 29
    told = library.error_transitions()
    assert told == [("gpu_error", {"gpu": 0, "function": "nvmlDeviceGetPowerUsage", "error": "Timeout"})]
    assert library.error_transitions() == []
    del module.broken["nvmlDeviceGetPowerUsage"]
    clock.now += 0.1
    assert library.sample(0).power_watts is not None
    assert library.error_transitions() == [("gpu_recovered", {"gpu": 0})]


def test_a_lost_gpu_is_read_again_after_nvml_was_started_anew() -> None:
    library, module, clock = open_fake_nvml()
    library.sample(0)
    clock.now += 0.1
    assert library.sample(0).sm_active_fraction is not None
    module.lost = NVMLError("GPU is lost", GPU_IS_LOST)
    for _ in range(10):
        clock.now += 0.1
        assert library.sample(0) == gpu_sample(0, time_unix=5.0)
    [(kind, data)] = library.error_transitions()
    assert (kind, data["error"]) == ("gpu_error", "GPU is lost")
    assert module.calls.count("nvmlInit") == 1
    clock.now += 5.0
    assert library.sample(0).power_watts is not None
    assert module.calls.count("nvmlInit") == 2
    assert library.error_transitions() == [("gpu_recovered", {"gpu": 0})]
    clock.now += 0.1
    assert library.sample(0).sm_active_fraction is not None


def test_a_driver_that_is_gone_for_a_while() -> None:
    library, module, clock = open_fake_nvml()
    library.sample(0)
    module.lost = NVMLError("Driver Not Loaded", 9)
    library.sample(0)
    module.broken["nvmlInit"] = NVMLError("Driver Not Loaded", 9)
    tries = []
    for _ in range(60):
        clock.now += 5.0
        tries.append(module.calls.count("nvmlInit"))
        assert library.sample(0) == gpu_sample(0, time_unix=5.0)
    assert [kind for kind, _ in library.error_transitions()] == ["gpu_error"]
    assert tries[:4] == [1, 2, 2, 3], "waits of 5, 10, 20 ... seconds"
    assert tries[-1] - tries[-13] == 1, "and never more than a minute"
    del module.broken["nvmlInit"]
    clock.now += 60.0
    assert library.sample(0).temperature_celsius == 29
    assert [kind for kind, _ in library.error_transitions()] == ["gpu_recovered"]
