"""A run's summary, whole and partial, and its JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profilers.model.run_summary import RunSummary, StepSeconds
from profilers.records.reader import RunRecords
from profilers.records.schema import PHASES
from profilers.records.writer import RecordWriter
from profilers.summary import RunFacts, summarize
from tests.support.approximate import about
from tests.support.samples import comm_sample, gpu_sample, memory_sample, step_sample

FACTS = RunFacts(
    run="20250101-000000-ab12",
    layout={"dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 0},
    world_size=2,
    backend="gloo",
    tokens_per_step=1000,
    model_flops_per_step=4e9,
    peak_flops_per_second=2e10,
    peak_source="measured by calibrate",
    parameters=123,
)
STEP = {"data": 0.01, "forward": 0.3, "backward": 0.4, "communication_exposed": 0.25, "optimizer": 0.04}


def write_run(folder: Path, ranks: int = 2, steps: int = 10, warmup: int = 2) -> None:
    """Rank 1 is 0.1 s busier; each step has one call of 0.6 s of which 0.25 s (rank 0: 0.35 s) are exposed."""
    for rank in range(ranks):
        wait = {"communication_exposed": 0.35 if rank == 0 else 0.25}
        busy = {"forward": 0.3 if rank == 0 else 0.4}
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                values: dict[str, Any] = {"measured": step >= warmup, "loss": 3.0 - 0.1 * step - rank}
                writer.write(step_sample(step, **STEP | wait | busy | values))
                writer.write(comm_sample(step, seconds=0.6, exposed_seconds=wait["communication_exposed"]))
                writer.write(memory_sample(step, peak_rss_bytes=1000 + rank + step))
            writer.event("validation", loss=9.0)
            writer.event("validation", loss=2.0 + rank)


def summary(folder: Path, **facts: Any) -> RunSummary:
    return summarize(RunRecords(folder), replace(FACTS, **facts))


def test_speed(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path)
    assert found.measured_steps == 8
    assert found.step_samples == about([1.1] * 8)
    assert found.step_seconds == StepSeconds(*[about(1.1)] * 5)
    assert found.round_samples == found.step_samples
    assert found.tokens_per_second == about(1000 / 1.1)
    assert found.tokens_per_second_interval is not None
    assert found.tokens_per_second_interval.low == about(1000 / 1.1)
    assert found.cpu_seconds_per_step == about(1.0)


def test_the_interval_of_the_rate_is_in_order(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(20):
            writer.write(step_sample(step, forward=1.0 + 0.1 * (step % 5)))
    found = summary(tmp_path)
    assert found.tokens_per_second is not None and found.tokens_per_second_interval is not None
    assert found.tokens_per_second_interval.low < found.tokens_per_second
    assert found.tokens_per_second < found.tokens_per_second_interval.high


def rounds_run(folder: Path, steps: int, period: int = 4, **values: Any) -> None:
    """Two ranks whose steps take 0.1 s, and 2 s more at the end of each round, in which they wait for an average."""
    for rank in range(2):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                wait = 2.0 if (step + 1) % period == 0 else 0.0
                measured = {"measured": step >= 3, "start_unix": 1_700_000_000.0 + 10 * step}
                writer.write(step_sample(step, forward=0.1, communication_exposed=wait, **measured | values))
                if wait:
                    begin = measured["start_unix"] + 0.1
                    call = {"axis": "outer", "seconds": wait, "exposed_seconds": wait, "start_unix": begin}
                    writer.write(comm_sample(step, **call))


def test_the_rate_is_of_whole_rounds_and_what_a_round_waits_for_is_seen(tmp_path: Path) -> None:
    """The median step takes 0.1 s, a stop-watch over a round says 2.4 s."""
    rounds_run(tmp_path, 21)
    found = summary(tmp_path, round_steps=4)
    assert (found.measured_steps, found.round_steps) == (16, 4)
    assert found.round_samples == about([2.4] * 4)
    assert found.tokens_per_second == about(4 * 1000 / 2.4)
    assert found.step_seconds == StepSeconds(about(0.1), about(2.1), about(0.6), about(0.6), about(0.6))
    assert found.mfu == about(4e9 / 0.6 / 4e10)
    assert found.exposed_seconds_by_axis == about({"outer": 0.5})
    assert sum(found.phases.values()) == about(0.6)
    (row,) = found.communication
    assert (row.axis, row.calls, row.exposed_seconds) == ("outer", about(0.25), about(0.5))
    (verdict,) = found.verdicts
    assert (verdict.name, verdict.axis, verdict.share) == ("exposed_all_reduce", "outer", about(0.5 / 0.6))


def test_less_than_a_round_has_no_rate_and_says_so(tmp_path: Path) -> None:
    rounds_run(tmp_path, 21, period=20)
    found = summary(tmp_path, round_steps=20)
    assert (found.tokens_per_second, found.mfu, found.measured_steps) == (None, None, 18)
    assert found.step_seconds is not None and found.step_seconds.mean is None
    assert found.tokens_per_second_reason is not None
    assert "20 steps" in found.tokens_per_second_reason
    assert found.mfu_reason == "no whole round was measured"


def test_planning_counts_and_the_whole_run_has_a_rate_of_its_own(tmp_path: Path) -> None:
    """Ten steps of 1 s, each 0.5 s after the one before; then the ranks were busy for another 15 s with evaluation."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(10):
            more: dict[str, Any] = {"start_unix": 1_700_000_000.0 + 1.5 * step}
            writer.write(step_sample(step, forward=1.0, between_seconds=0.5 if step else None, **more))
    found = summary(tmp_path)
    assert found.tokens_per_second == about(1000 / 1.45)
    assert found.between_seconds == about(0.45)
    assert found.step_seconds is not None
    assert sum(found.phases.values()) + (found.between_seconds or 0) == about(found.step_seconds.mean)
    (bound,) = found.verdicts
    assert "take 1.00 s of a mean step (69 %)" in bound.evidence, (
        "of the same step as all other shares: 1 of 1.45 s"
    )
    assert found.wall_seconds == about(14.5)
    assert found.tokens_per_wall_second == about(10 * 1000 / 14.5)


def test_where_ranks_alone_know_their_tokens_a_rate_is_of_those_that_were_measured(tmp_path: Path) -> None:
    """Documents of their own lengths: two steps of warm-up had few tokens, and each two ranks have the same."""
    for rank in range(4):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step in range(6):
                tokens = (3 if step < 2 else 100 + step) * (1 + rank // 2)
                writer.write(step_sample(step, forward=2.0, measured=step >= 2, tokens=tokens))
    found = summary(tmp_path, tokens_per_step=None, ranks_alike=2)
    mean = sum(3 * (100 + step) for step in range(2, 6)) / 4
    assert (found.tokens_per_step, found.tokens_per_second) == (round(mean), about(mean / 2.0))
    assert found.wall_seconds is not None
    assert found.tokens_per_wall_second == about((4 * mean + 2 * 9) / found.wall_seconds)


def test_a_batch_that_grows_counts_as_it_was_over_the_whole_run(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(6):
            writer.write(step_sample(step, forward=1.0, tokens=100 if step < 3 else 1000))
    found = summary(tmp_path, ranks_alike=1)
    assert found.wall_seconds is not None
    assert found.tokens_per_wall_second == about(3300 / found.wall_seconds)


def test_where_the_time_goes(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path)
    assert list(found.phases) == list(PHASES)
    assert found.step_seconds is not None
    assert sum(found.phases.values()) == about(found.step_seconds.mean)
    assert (found.rank_skew_seconds, found.slowest_rank) == (about(0.1), 1)
    (row,) = found.communication
    assert (row.axis, row.operation, row.calls, row.bytes) == ("dp", "all_reduce", 1.0, 1000.0)
    assert (row.seconds, row.exposed_seconds) == (about(0.6), about(0.3))
    assert found.hidden_communication_seconds == about(0.3), "the mean over ranks, as all else"
    assert [verdict.name for verdict in found.verdicts] == ["exposed_all_reduce"]


def test_losses_are_the_mean_of_the_ranks_that_know_one(tmp_path: Path) -> None:
    losses = {0: [3.0, None, math.nan], 1: [1.0, 5.0, None]}
    for rank, values in losses.items():
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step, loss in enumerate(values):
                writer.write(step_sample(step, loss=loss))
    assert summary(tmp_path).losses == [2.0, 5.0, None]


def test_validation_loss_is_the_mean_of_each_rank_s_last(tmp_path: Path) -> None:
    write_run(tmp_path)
    with RecordWriter(tmp_path, "rank-2") as writer:
        writer.event("validation", loss=math.nan)
        writer.event("validation", something="else")
    assert summary(tmp_path).validation_loss == 2.5


def test_a_loss_from_before_the_first_step_says_nothing_of_a_run_that_trained(tmp_path: Path) -> None:
    """As of one that was stopped or killed before its next loss on held-out text."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("validation", step=0, loss=5.5)
    assert summary(tmp_path).validation_loss == 5.5
    with RecordWriter(tmp_path, "rank-1") as writer:
        for step in range(3):
            writer.write(step_sample(step, loss=4.0 - step))
    assert summary(tmp_path).validation_loss is None
    with RecordWriter(tmp_path, "rank-2") as writer:
        writer.event("validation", step=2, loss=2.5)
    assert summary(tmp_path).validation_loss == 2.5


def test_peak_memory_is_that_of_the_gpu_where_there_is_one(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert summary(tmp_path).peak_memory_bytes == 1010
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(memory_sample(cuda_peak_bytes=77))
    assert summary(tmp_path).peak_memory_bytes == 77


def test_mfu_names_its_convention(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path)
    assert found.model_flops_per_second == about(4e9 / 1.1)
    assert found.mfu == about(4e9 / 1.1 / 4e10)
    assert found.mfu_reason is not None
    assert "2 x 2e+10 FLOP/s (measured by calibrate)" in found.mfu_reason


def test_hfu_counts_recomputation(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path, hardware_flops_per_step=5e9, mfu_convention="a rule")
    assert found.mfu == about(4e9 / 1.1 / 4e10)
    assert found.hfu == about(5e9 / 1.1 / 4e10)
    assert (found.model_flops_per_step, found.hardware_flops_per_step) == (4e9, 5e9)
    assert (found.peak_flops, found.peak_source, found.mfu_convention) == (
        2e10,
        "measured by calibrate",
        "a rule",
    )
    assert summary(tmp_path).hfu is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"peak_flops_per_second": None, "peak_source": "no entry for this CPU"}, "no entry for this CPU"),
        ({"model_flops_per_step": None}, "FLOPs per step are not known"),
    ],
)
def test_an_unknown_mfu_has_a_reason(tmp_path: Path, facts: dict[str, Any], reason: str) -> None:
    write_run(tmp_path)
    found = summary(tmp_path, **facts)
    assert (found.mfu, found.hfu) == (None, None)
    assert found.mfu_reason is not None
    assert reason in found.mfu_reason


def test_energy_per_step(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert summary(tmp_path).joules_per_step is None
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.event("gpus", host="here", gpus=[{"gpu": 0, "uuid": "GPU-7"}])
        for second in range(-1, 20):
            writer.write(gpu_sample(time_unix=1_700_000_000.0 + second, energy_joules=800.0 * second))
    assert summary(tmp_path).joules_per_step is None
    for rank in (0, 1):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.event("environment", device="NVIDIA H100", gpu_uuid="GPU-7")
    assert summary(tmp_path).joules_per_step == about(800 * 8.1 / 8)
    for rank in (0, 1):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            writer.write(step_sample(5, **STEP, measured=False))
    found = summary(tmp_path)
    assert (found.measured_steps, found.joules_per_step) == (7, about(800 * (3.1 + 4.1) / 7))


def test_the_energy_of_an_evaluation_is_no_step_s(tmp_path: Path) -> None:
    """Ten steps of 1 s at 100 W; after the fifth one 20 s of evaluation at 900 W."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.event("environment", device="NVIDIA H100", gpu_uuid="GPU-7")
        for step in range(10):
            start = 1_700_000_000.0 + step + (20 if step >= 5 else 0)
            writer.write(step_sample(step, start_unix=start, between_seconds=0.0 if step else None))
    with RecordWriter(tmp_path, "launcher") as writer:
        writer.event("gpus", host="here", gpus=[{"gpu": 0, "uuid": "GPU-7"}])
        for tenth in range(-10, 320):
            at = tenth / 10
            joules = 100 * at + 800 * min(max(at - 5, 0), 20)
            writer.write(gpu_sample(time_unix=1_700_000_000.0 + at, energy_joules=joules))
    assert summary(tmp_path).joules_per_step == about(100, rel=1e-3)


def test_dropped_records_are_added_up(tmp_path: Path) -> None:
    for process, count in (("rank-0", 2), ("rank-1", 3), ("launcher", 4)):
        with RecordWriter(tmp_path, process) as writer:
            writer.event("dropped", count=count, reason="No space left on device")
    assert summary(tmp_path).dropped_records == 9


def test_an_empty_run(tmp_path: Path) -> None:
    found = summary(tmp_path / "nowhere")
    assert (found.id, found.parameters, found.measured_steps) == (FACTS.run, 123, 0)
    assert (found.step_seconds, found.tokens_per_second, found.mfu, found.validation_loss) == (None,) * 4
    assert (found.losses, found.phases, found.communication, found.verdicts) == ([], {}, [], [])
    assert found.mfu_reason == "no measured step"


def test_a_run_killed_during_warm_up_has_losses_and_memory(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2, warmup=5)
    found = summary(tmp_path)
    assert (found.measured_steps, found.step_seconds, len(found.losses)) == (0, None, 2)
    assert found.peak_memory_bytes == 1002


def test_a_run_killed_after_one_measured_step_has_no_interval(tmp_path: Path) -> None:
    write_run(tmp_path, steps=3)
    found = summary(tmp_path)
    assert found.step_seconds is not None
    assert (found.step_seconds.low, found.tokens_per_second_interval) == (None, None)
    assert sum(found.phases.values()) == about(found.step_seconds.mean)


def test_measured_steps_without_one_in_detail_have_times_and_say_so(tmp_path: Path) -> None:
    """As in the few steps of a window, where every step in detail would cost too much."""
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step in range(4):
            times: dict[str, Any] = {f"{phase}_seconds": None for phase in PHASES}
            writer.write(replace(step_sample(step, measured=step >= 2), **times))
    found = summary(tmp_path, world_size=1)
    assert (found.measured_steps, found.detailed_steps, found.step_seconds is None) == (2, 0, False)
    assert (found.phases, found.communication, found.verdicts, found.slowest_rank) == ({}, [], [], None)
    assert "in detail" in str(found.wire_bytes_reason)


def test_a_half_written_end_changes_nothing(tmp_path: Path) -> None:
    write_run(tmp_path)
    before = summary(tmp_path)
    for path in tmp_path.iterdir():
        with path.open("ab") as file:
            file.write(b"\xc1\xc1\x09")
    assert summary(tmp_path) == before


def test_json_round_trip(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = summary(tmp_path)
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert RunSummary.from_dict(json.loads(text)) == found
    empty = summary(tmp_path / "nowhere")
    assert RunSummary.from_dict(json.loads(json.dumps(empty.as_dict()))) == empty


def test_json_keys() -> None:
    """Others rely on these; a new one may come, none may go."""
    assert set(RunSummary("x", {}, 1, "gloo", 0, 0).as_dict()) >= {
        *("id", "layout", "world_size", "backend", "parameters", "losses", "validation_loss"),
        *("measured_steps", "step_seconds", "step_samples", "tokens_per_step", "tokens_per_second"),
        *("tokens_per_second_interval", "phases", "communication", "hidden_communication_seconds"),
        *("wire_bytes_per_step", "wire_bytes_reason", "peak_memory_bytes", "model_flops_per_second", "mfu"),
        *("mfu_reason", "joules_per_step", "cpu_seconds_per_step", "rank_skew_seconds", "slowest_rank"),
        *("dropped_records", "verdicts", "hfu", "model_flops_per_step", "hardware_flops_per_step"),
        *("mfu_convention", "peak_flops", "peak_source"),
    }


def test_a_summary_of_another_version_is_read() -> None:
    found = RunSummary.from_dict(
        {
            "id": "x",
            "layout": {"dp": 1},
            "world_size": 1,
            "backend": "gloo",
            "parameters": 1,
            "tokens_per_step": 2,
            "new": 3,
        }
    )
    assert (found.id, found.mfu) == ("x", None)
    with pytest.raises(ValueError, match="world_size"):
        RunSummary.from_dict({"id": "x", "layout": {}, "backend": "gloo"})
