"""A recording of a driver replays as the driver answered: what ``benchmarks/gpu_nvml.py --record`` writes."""

from pathlib import Path

import pynvml

from profilers.gpu.nvml import Nvml
from profilers.gpu.nvml_call_recorder import NvmlCallRecorder, _same
from tests.support.gpu.fake_nvml import GPU_IS_LOST, FakeNvml, NVMLError


def test_what_was_recorded_replays_to_the_same_samples(tmp_path: Path) -> None:
    """The driver here is itself a replay; that of a GPU passes through the same recorder."""
    recorder = NvmlCallRecorder(FakeNvml())
    library = Nvml(recorder, wall_clock=lambda: 5.0)
    library.ranks = frozenset({4243})
    assert library.device_count == 2
    heard = [library.sample(gpu) for gpu in (0, 1, 0, 1)]
    name, driver, missing = library.name(1), library.driver_version, library.missing
    library.close()
    recorder.save(tmp_path / "recording.json", "a replay of a replay")
    again = Nvml(FakeNvml(path=tmp_path / "recording.json"), wall_clock=lambda: 5.0)
    again.ranks = frozenset({4243})
    assert [again.sample(gpu) for gpu in (0, 1, 0, 1)] == heard
    assert (again.device_count, again.name(1), again.driver_version, again.missing) == (
        2,
        name,
        driver,
        missing,
    )


def test_answers_that_change_come_one_after_the_other_and_errors_are_kept(tmp_path: Path) -> None:
    module = FakeNvml()
    module.answers["nvmlDeviceGetPowerUsage"]["[0]"] = [1000, 2000, 3000]
    recorder = NvmlCallRecorder(module)
    library = Nvml(recorder)
    assert library.device_count == 2
    watts = [library.sample(0).power_watts for _ in range(3)]
    module.broken["nvmlDeviceGetPowerUsage"] = NVMLError("GPU is lost", GPU_IS_LOST)
    library.sample(0)
    recorder.save(tmp_path / "recording.json", "one GPU that was lost")
    again = Nvml(FakeNvml(path=tmp_path / "recording.json"))
    assert [again.sample(0).power_watts for _ in range(4)] == [*watts, None] == [1.0, 2.0, 3.0, None]
    assert again.missing == ["nvmlDeviceGetPowerUsage: GPU is lost"]


def test_a_sample_is_known_again_when_it_comes_out_of_pynvml_s_structure() -> None:
    samples = [pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t()) for _ in range(2)]
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.sample1, request.sample2 = samples
    assert _same(request.sample2, samples[1])
    assert not _same(request.sample1, samples[1])


def test_every_call_has_its_cost() -> None:
    recorder = NvmlCallRecorder(FakeNvml())
    library = Nvml(recorder)
    library.sample(0)
    assert all(
        wall >= 0 and processor >= 0 for spans in recorder.seconds.values() for wall, processor in spans
    )
    assert len(recorder.seconds["nvmlDeviceGetPowerUsage"]) == 1
    assert len(recorder.seconds["nvmlDeviceGetClockInfo"]) == 2
