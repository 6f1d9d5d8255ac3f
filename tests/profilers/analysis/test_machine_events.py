"""What the sampler leaves of GPUs that fail in the middle of a run, in the records of the launcher."""

from pathlib import Path

from profilers.gpu.nvml import Nvml
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler
from tests.support.gpu.fake_nvml import GPU_IS_LOST, FakeNvml, NVMLError


class Script:
    """Time that moves by what the sampler waits, and does something after each wait."""

    def __init__(self, module: FakeNvml, lost_after: int, back_after: int, ticks: int) -> None:
        self.now, self.tick = 1000.0, 0
        self.module, self.lost_after, self.back_after, self.ticks = module, lost_after, back_after, ticks

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += max(0.0, seconds)
        self.tick += 1
        if self.tick == self.lost_after:
            self.module.lost = NVMLError("GPU is lost", GPU_IS_LOST)
        if self.tick == self.back_after:
            self.now += 10.0
        return self.tick >= self.ticks


def test_a_gpu_that_is_lost_and_comes_back_leaves_two_events_and_a_gap(tmp_path: Path) -> None:
    module = FakeNvml(gpus=1)
    script = Script(module, lost_after=3, back_after=6, ticks=9)
    with RecordWriter(tmp_path, "launcher") as writer:
        library = Nvml(module, clock=script.clock)
        sampler = Sampler(writer, 0.1, library=library, clock=script.clock, wait=script.wait)
        sampler.watch([4243])
        sampler._paces["gpu"].read = lambda reading: reading()  # type: ignore[method-assign]
        with sampler:
            sampler._thread.join(20)
    records = RunRecords(tmp_path)
    told = [(event.kind, event.data) for event in records.events("launcher") if event.kind.startswith("gpu_")]
    assert [kind for kind, _ in told] == ["gpu_error", "gpu_recovered"]
    assert told[0][1]["error"] == "GPU is lost"
    watts = records.table("launcher", "gpu").column("power_watts").tolist()
    assert watts == [67.74] * 3 + [None] * 3 + [67.74] * (len(watts) - 6)
    assert 524_288_000 in records.table("launcher", "gpu").column("ranks_memory_bytes").tolist()
