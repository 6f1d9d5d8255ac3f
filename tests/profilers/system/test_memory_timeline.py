"""Memory within a step: when it is read, and which phase its peak falls into."""

import pytest
import torch

from profilers.records.schema import PHASES
from profilers.steps.clock import CpuClock
from profilers.steps.timer import StepTimer
from profilers.system import memory
from profilers.system.memory import CudaMemory, MemoryReader, Reading, reset_peak
from profilers.system.memory_timeline import MemoryTimeline, samples


class Machine:
    """Memory and a clock that a test moves: each phase takes a millisecond or more."""

    def __init__(self) -> None:
        self.seconds, self.now, self.peak, self.readings = 0.0, 0, 0, 0

    def read(self) -> Reading:
        self.readings += 1
        return Reading(self.seconds, self.now, self.peak)

    def holds(self, now: int, peak: int | None = None, seconds: float = 0.01) -> None:
        self.seconds += seconds
        self.now, self.peak = now, max(self.peak, now, peak or 0)


def run(*phases: tuple[str, int, int] | tuple[str, int, int, float]) -> tuple[dict[str, Reading], int]:
    """One step of (phase, memory at its end, highest within it[, seconds])."""
    machine = Machine()
    timeline = MemoryTimeline(machine.read, clock=lambda: machine.seconds)
    for name, now, peak, *seconds in phases:
        timeline.change(PHASES.index(name))
        machine.holds(now, peak, *seconds)
    return timeline.end(), machine.readings


def peak_phase(kept: dict[str, Reading]) -> str:
    most = max(reading.peak_bytes for reading in kept.values())
    return next(name for name, reading in kept.items() if reading.peak_bytes == most)


def test_a_reading_belongs_to_the_phase_that_ended() -> None:
    kept, readings = run(("data", 1, 1), ("forward", 5, 5), ("backward", 2, 6), ("optimizer", 3, 4))
    assert {name: (row.rss_bytes, row.peak_rss_bytes) for name, row in kept.items()} == {
        "data": (1, 1), "forward": (5, 5), "backward": (2, 6), "optimizer": (3, 6),
    }  # fmt: skip
    assert (peak_phase(kept), readings) == ("backward", 4)


def test_waits_count_to_the_phase_around_them() -> None:
    kept, readings = run(
        ("forward", 1, 1), ("bubble", 2, 2), ("forward", 3, 3), ("communication_exposed", 4, 9),
        ("other", 4, 4), ("backward", 1, 1),
    )  # fmt: skip
    assert (list(kept), readings, peak_phase(kept)) == (["forward", "backward"], 2, "forward")


def test_of_many_micro_batches_the_one_that_raised_the_peak_is_kept() -> None:
    kept, _ = run(
        ("forward", 4, 4), ("backward", 2, 5), ("forward", 6, 7), ("backward", 2, 7), ("forward", 5, 5),
        ("backward", 1, 5),
    )  # fmt: skip
    assert list(kept) == ["forward", "backward"]
    assert (kept["forward"].rss_bytes, kept["forward"].peak_rss_bytes) == (6, 7)
    assert peak_phase(kept) == "forward"


def test_many_short_phases_are_read_once_a_millisecond() -> None:
    phases = [(name, 1, 1, 1e-4) for _ in range(50) for name in ("forward", "backward")]
    kept, readings = run(*phases)
    assert readings <= 2 * 4 + 10 + 1
    assert kept.keys() == {"forward", "backward"}


def test_slow_readings_are_made_less_often() -> None:
    machine = Machine()

    def read() -> Reading:
        machine.seconds += 1e-4
        return machine.read()

    timeline = MemoryTimeline(read, clock=lambda: machine.seconds)
    for name in ("forward", "backward") * 1_000:
        timeline.change(PHASES.index(name))
        machine.holds(1, seconds=1e-3)
    timeline.end()
    assert 2 * 4 < machine.readings < 30


def test_a_step_leaves_nothing_to_the_next() -> None:
    machine = Machine()
    timeline = MemoryTimeline(machine.read)
    timeline.change(PHASES.index("forward"))
    assert list(timeline.end()) == ["forward"]
    assert list(timeline.end()) == ["other"]


def test_the_records_of_a_gpu() -> None:
    reading = Reading(1.5, 10, 20, CudaMemory(allocated=3, peak=4, reserved=5, inactive_split=1, retries=2))
    assert (reading.now_bytes, reading.peak_bytes) == (3, 4)
    (sample,) = samples(7, {"backward": reading})
    assert (sample.step, sample.phase, sample.time_unix) == (7, "backward", 1.5)
    assert (sample.cuda_allocated_bytes, sample.cuda_peak_bytes, sample.cuda_reserved_bytes) == (3, 4, 5)
    assert (sample.cuda_inactive_split_bytes, sample.cuda_allocation_retries) == (1, 2)


def test_memory_that_is_gone_again_is_seen_in_its_phase() -> None:
    """Real memory of this process: 200 MB that only live within backward."""
    device = torch.device("cpu")
    reader, timer = MemoryReader(device), StepTimer(CpuClock())
    timeline = MemoryTimeline(reader.read)
    timer.on_change = timeline.change
    reset_peak(device)
    timer.begin(0)
    with timer.phase("forward"):
        torch.ones(1000)
    with timer.phase("backward"):
        before = reader.read().rss_bytes
        torch.ones(50_000_000).sum()
    with timer.phase("optimizer"):
        torch.ones(1000)
    timer.end()
    kept = timeline.end()
    assert peak_phase(kept) == "backward"
    assert kept["backward"].peak_rss_bytes > before + 150e6
    assert kept["backward"].rss_bytes < before + 50e6
    reset_peak(device)
    assert reader.read().peak_rss_bytes < kept["backward"].peak_rss_bytes - 100e6
    reader.close()


def test_memory_of_steps_that_are_left_out_is_not_in_the_peak() -> None:
    """Real memory of this process: 200 MB while left out, 80 MB that is kept before, and 120 MB afterwards."""
    device = torch.device("cpu")
    reader = MemoryReader(device)
    reset_peak(device)
    start = reader.read().rss_bytes
    kept = torch.ones(20_000_000)
    before = reader.read().peak_rss_bytes
    reader.leave_out(True)
    buffers = torch.ones(50_000_000)
    during = reader.read()
    del buffers
    reader.leave_out(False)
    after = reader.read()
    assert during.rss_bytes > start + 250e6
    assert during.peak_rss_bytes == before
    assert before <= after.peak_rss_bytes < before + 50e6
    torch.ones(30_000_000).sum()
    assert reader.read().peak_rss_bytes > after.peak_rss_bytes + 80e6
    assert kept.sum() == len(kept)
    reader.close()


class Kernel:
    """A process whose kernel counts its peak; ``allows`` says whether the peak can be started anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allows: bool) -> None:
        self.now = self.highest = 0
        self._allows = allows
        monkeypatch.setattr(memory, "peak_rss_bytes", lambda: self.highest)
        monkeypatch.setattr(MemoryReader, "_rss_bytes", lambda reader, peak: self.now)
        monkeypatch.setattr(memory, "_start_new_rss_peak", self._start_new)

    def holds(self, now: int, highest: int = 0) -> None:
        self.now, self.highest = now, max(self.highest, now, highest)

    def _start_new(self) -> None:
        if self._allows:
            self.highest = self.now


@pytest.mark.parametrize(
    ("allows", "peaks"),
    [
        (True, [50, 50, 50, 60, 95, 300]),
        (False, [50, 50, 50, 50, 70, 300]),  # what was between two readings shows only above 200
    ],
)
def test_a_peak_that_cannot_be_started_anew_goes_by_readings_until_it_is_passed(
    monkeypatch: pytest.MonkeyPatch, allows: bool, peaks: list[int]
) -> None:
    kernel, reader, seen = Kernel(monkeypatch, allows), MemoryReader(torch.device("cpu")), []

    def reading(now: int, highest: int = 0) -> None:
        kernel.holds(now, highest)
        seen.append(reader.read().peak_rss_bytes)

    reading(40, highest=50)
    reader.leave_out(True)
    reading(200)
    kernel.holds(45)
    reader.leave_out(False)
    reader.leave_out(False)
    reading(45)
    reading(45, highest=60)
    reading(70, highest=95)
    reading(80, highest=300)
    assert seen == peaks
    reader.close()
