"""Findings from records, and verdicts from findings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.config.run_config import RunConfig
from engine.lifecycle import setting_of
from profilers.model.run_summary import RunSummary
from profilers.model.verdict import Gain, Setting, Thresholds, Verdict, find_keys, judge, rate
from profilers.records.schema import ExpertSample, TaskSample
from profilers.records.writer import RecordWriter
from profilers.verdicts.communication import advice
from tests.support.approximate import about
from tests.support.profilers import uniform_records
from tests.support.profilers.uniform_records import STEPS, UUID, gpu_run, named, summary, write
from tests.support.samples import step_sample


def test_waiting_for_data_is_that_of_the_rank_with_most_of_it(tmp_path: Path) -> None:
    write(tmp_path, [{"data": 0.1, "forward": 0.9}, {"data": 0.4, "forward": 0.6}])
    first, *_ = summary(tmp_path).verdicts
    assert (first.name, first.rank, first.host) == ("input_bound", 1, "node-1")
    assert (first.share, first.seconds, first.threshold) == (about(0.4), about(0.4), 0.10)
    assert first.gain == Gain(about(0.4), "data / step, if all of it is hidden")
    assert (
        first.evidence
        == "rank 1 on node-1 spends 400.0 ms of a mean step (40 %) waiting for data; the median rank 250.0 ms"
    )


def test_overlapped_communication_is_never_lost(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}] * 2, [{"seconds": 0.9, "exposed_seconds": 0.0}])
    found = summary(tmp_path)
    assert [verdict.name for verdict in found.verdicts] == ["compute_bound"]
    assert found.verdicts[0].evidence.endswith("; no cause of waiting is above its threshold")
    assert not [finding for finding in found.findings if finding.name.startswith("exposed")]
    assert found.hidden_communication_seconds == about(0.9)


def test_what_is_said_of_computing_is_what_the_phases_say(tmp_path: Path) -> None:
    """On the same page: shares of the mean step on all ranks, both."""
    slow = {"forward": 0.9, "communication_exposed": 0.3}
    write(tmp_path, [{"forward": 0.5, "communication_exposed": 0.05}, slow])
    found = summary(tmp_path)
    share = found.phases["forward"] / sum(found.phases.values())
    assert share == about(0.8)
    assert f"({share:.0%})".replace("%", " %") in named(found, "compute_bound").evidence


def test_waiting_for_a_late_rank_is_the_straggler_and_not_the_collective(tmp_path: Path) -> None:
    late = [{"forward": 0.4, "communication_exposed": 0.6}, {"forward": 0.95, "communication_exposed": 0.05}]
    write(tmp_path, late, [{"exposed_seconds": [0.6, 0.05], "seconds": 0.6}])
    found = summary(tmp_path)
    (only,) = found.verdicts
    assert (only.name, only.rank, only.host) == ("straggler", 1, "node-1")
    computing = named(found, "compute_bound")
    assert not {"nothing", "fine"} & {*computing.evidence.split(), *computing.advice.split()}, (
        "one is above its threshold"
    )
    assert only.seconds == about(0.55)
    reduce = named(found, "exposed_all_reduce")
    assert (reduce.share, reduce.axis) == (about(0.05), "dp")
    assert "another 275.0 ms are spent waiting for late ranks" in reduce.evidence
    assert found.late_rank_seconds == about(0.275)
    assert reduce.seconds is not None
    assert found.late_rank_seconds + reduce.seconds == about(found.phases["communication_exposed"])


@pytest.mark.parametrize(("steps", "said"), [(1, "1 step"), (4, "4 steps"), (STEPS, "")])
def test_who_is_slowest_in_all_of_few_steps_may_be_so_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, said: str
) -> None:
    """The skew of the same steps has no rank that is last more often than chance explains."""
    monkeypatch.setattr(uniform_records, "STEPS", steps)
    write(tmp_path, [{"forward": 0.5, "communication_exposed": 0.5}, {"forward": 1.0}])
    found = summary(tmp_path)
    assert found.skew is not None and bool(found.skew.ranks) == (not said)
    (only,) = found.verdicts
    ending = f"of {said}, which chance may explain" if said else "of the steps"
    assert (only.name, only.rank) == ("straggler", 1) and only.evidence.endswith(f"in 100 % {ending}")


def test_a_wait_is_shared_by_the_calls_under_way_in_it(tmp_path: Path) -> None:
    both: list[dict[str, Any]] = [
        {"exposed_seconds": 0.3},
        {"exposed_seconds": 0.3, "operation": "all_gather"},
    ]
    write(tmp_path, [{"forward": 0.7, "communication_exposed": 0.3}] * 2, both)
    found = summary(tmp_path)
    assert {one.name: one.share for one in found.verdicts} == {
        "exposed_all_reduce": about(0.15),
        "exposed_all_gather": about(0.15),
    }


def test_only_members_of_a_group_are_compared(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for their link; ranks 2 and 3 have a fast one."""
    slow, fast = {"forward": 0.6, "communication_exposed": 0.4}, {"forward": 0.6, "other": 0.1}
    write(tmp_path, [slow, slow, fast, fast], [{"exposed_seconds": [0.4, 0.4, 0.0, 0.0]}])
    assert named(summary(tmp_path, Setting({"dp": [[0, 1], [2, 3]]})), "exposed_all_reduce").seconds == about(
        0.2
    )


def test_waits_that_no_call_explains_are_told(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 0.5, "communication_exposed": 0.5}])
    (only,) = summary(tmp_path).verdicts
    assert (only.name, only.axis, only.knobs) == ("exposed_communication", None, ["profile.collectives"])


def test_a_different_slowest_rank_each_step_is_told(tmp_path: Path) -> None:
    for rank in range(3):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step in range(STEPS):
                slow = step % 3 == rank
                phases = {"forward": 1.0 if slow else 0.5, "communication_exposed": 0.0 if slow else 0.5}
                writer.write(step_sample(step, **phases))
    only = named(summary(tmp_path), "straggler")
    assert only.evidence.endswith("a different one each time, none of the 3 ranks more often than by chance")
    assert only.share == about(0.5)


def test_a_slow_stage_is_told_from_a_slow_rank(tmp_path: Path) -> None:
    """Two pipelines, 0-2 and 1-3: both ranks of the second stage are slow."""
    write(tmp_path, [{"forward": 0.5}, {"forward": 0.5}, {"forward": 1.0}, {"forward": 0.9}])
    stage = named(summary(tmp_path, Setting({"pp": [[0, 2], [1, 3]]})), "straggler")
    assert "schedule.stage_layers" in stage.knobs and "at position 1 of the pipeline" in stage.evidence
    assert "parallel.dp" in named(summary(tmp_path), "straggler").knobs


def test_the_bubble_is_that_of_the_schedule_and_the_rest_is_messages(tmp_path: Path) -> None:
    """1F1B of 2 ranks and 4 micro-batches: idle (p - 1)(f + b) = 0.1 + 0.1 s, and 0.3 s more are messages."""
    write(tmp_path, [{"forward": 0.4, "backward": 0.4, "bubble": 0.5}] * 2)
    config = RunConfig().with_values(
        {"parallel.pp": 2, "batch.global_batch": 8, "batch.micro_batch": 2, "model.layers": 2}
    )
    found = summary(tmp_path, setting_of(config))
    bubble, sent = named(found, "pipeline_bubble"), named(found, "exposed_point_to_point")
    assert (bubble.seconds, sent.seconds) == (about(0.2), about(0.3))
    assert (bubble.axis, sent.axis) == ("pp", "pp")
    assert bubble.gain is not None
    assert bubble.gain.fraction == about((0.2 - 0.1) / 1.3)
    assert "closed form" in bubble.gain.formula


@pytest.mark.parametrize(
    "kind", ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "breadth_first", "layered"]
)
def test_every_schedule_can_say_what_it_waits(kind: str) -> None:
    chunks = 2 if kind in ("interleaved", "zb_v") else 1
    values = {"parallel.pp": 2, "schedule.kind": kind, "schedule.chunks": chunks}
    pipeline = setting_of(RunConfig().with_values(values)).pipeline
    assert pipeline is not None
    now, finer = pipeline.idle_seconds(4, 0.1, 0.23), pipeline.idle_seconds(8, 0.05, 0.115)
    assert 0 < finer < now


def test_the_most_expensive_comes_first_whatever_its_threshold(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 0.3, "data": 0.2, "other": 0.5}])
    assert [one.name for one in summary(tmp_path).verdicts] == ["host_bound", "input_bound"]


def test_thresholds_are_compared_anew_without_the_records(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 0.95, "data": 0.05}])
    found = summary(tmp_path)
    assert [one.name for one in found.verdicts] == ["compute_bound"]
    (again,) = judge(found.findings, Thresholds(input=0.01))
    assert (again.name, again.threshold) == ("input_bound", 0.01)
    assert (
        named(replace(found, findings=rate(found.findings, Thresholds(input=0.2))), "input_bound").threshold
        == 0.2
    )
    assert judge([], Thresholds()) == []


def test_a_share_at_its_threshold_is_not_above_it() -> None:
    at = Verdict("x", "", None, "", threshold_name="bubble", share=0.15, seconds=1.0)
    assert judge([at], Thresholds()) == []
    assert judge([structs.replace(at, share=0.1501)], Thresholds()) != []


def test_thresholds_of_a_configuration_are_the_usual_ones() -> None:
    assert setting_of(RunConfig()).thresholds == Thresholds()
    changed = RunConfig().with_values({"profile.thresholds.bubble": 0.1})
    assert setting_of(changed).thresholds == Thresholds(bubble=0.1)
    assert set(changed.profile.thresholds.model_dump()) == {field.name for field in fields(Thresholds)}


def test_every_threshold_says_what_is_compared_with_it() -> None:
    meanings = Thresholds.meanings()
    assert list(meanings) == [field.name for field in fields(Thresholds)]
    assert all(sentence.endswith(".") for sentence in meanings.values())


@pytest.mark.parametrize(
    "axis", ["dp", "dp_cp", "dp_shard", "edp", "ep", "cp", "tp", "pp", "world", "model", ""]
)
@pytest.mark.parametrize(
    "operation",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "point_to_point",
        "broadcast",
        "communication",
    ],
)
def test_advice_names_keys_that_there_are(operation: str, axis: str) -> None:
    text = advice(operation, axis)
    keys = find_keys(text)
    assert keys
    assert set(keys) <= set(RunConfig().flat())
    assert all(key in text for key in keys)


def test_every_finding_names_keys_that_there_are(tmp_path: Path) -> None:
    gpu_run(tmp_path, throttle_reasons=0x4, sm_clock_mhz=1500.0, sm_clock_max_mhz=2000.0)
    write(tmp_path, [{"forward": 0.4, "bubble": 0.2, "data": 0.1}, {"forward": 0.6}], device="NVIDIA H100",
          gpu_uuid=UUID)  # fmt: skip
    found = summary(tmp_path)
    assert {one.name for one in found.findings} >= {
        *("input_bound", "host_bound", "straggler", "pipeline_bubble", "memory_pressure", "clock_cap"),
        "compute_bound",
    }
    for finding in found.findings:
        assert finding.knobs and set(finding.knobs) <= set(RunConfig().flat())
        assert all(key in finding.advice for key in finding.knobs)


def test_verdicts_of_older_versions_are_read() -> None:
    old = {
        "name": "communication_exposed",
        "evidence": "27% of the step",
        "threshold": 0.2,
        "knob": "overlap.bucket_mb",
    }
    head = {
        "id": "x",
        "layout": {},
        "world_size": 1,
        "backend": "gloo",
        "parameters": 1,
        "tokens_per_step": 1,
    }
    found = RunSummary.from_dict(head | {"verdicts": [old]})
    assert found.verdicts == [Verdict("communication_exposed", "27% of the step", 0.2, "overlap.bucket_mb")]
    assert found.findings == []


def planted(folder: Path, slow: Callable[[int, int], float], steps: int = 60) -> RunSummary:
    """Four ranks of 1 s, give or take 1 ms; ``slow(rank, step)`` seconds more."""
    drawn = random.Random(0)
    for rank in range(4):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.event("environment", host=f"node-{rank}")
            for step in range(steps):
                forward = 1.0 + drawn.gauss(0, 0.001) + slow(rank, step)
                writer.write(step_sample(step, forward=forward, communication_exposed=0.1))
    return summary(folder)


@pytest.mark.parametrize(
    ("kind", "slow", "said", "seconds", "rank"),
    [
        ("fixed", lambda rank, _: 0.3 * (rank == 2), "rank 2 on node-2 takes", 0.3, 2),
        ("rotating", lambda rank, step: 0.3 * (step % 4 == rank), "a different one each time", 0.3, None),
        ("one-off", lambda rank, step: 18.0 * ((rank, step) == (3, 41)), "in 1 of 60 steps", 0.3, 3),
    ],
)
def test_a_planted_straggler_has_its_kind_in_verdict_and_summary(
    tmp_path: Path, kind: str, slow: Callable[[int, int], float], said: str, seconds: float, rank: int | None
) -> None:
    found = planted(tmp_path, slow)
    verdict, skew = named(found, "straggler"), found.as_dict()["skew"]
    assert (verdict.kind, skew["kind"]) == (kind, kind)
    assert said in verdict.evidence
    assert verdict.seconds == pytest.approx(seconds, abs=0.005)
    assert rank is None or verdict.rank == rank
    if kind == "one-off":
        assert "worst: rank 3 on node-3 in step 41, 18.00 s behind" in verdict.evidence
        assert [(late["step"], late["rank"]) for late in skew["latest"]] == [(41, 3)]


def test_the_least_even_layer_is_named_only_above_its_threshold(tmp_path: Path) -> None:
    """Layer 3 sends three quarters to one of four experts; layer 0 is even. Ranks count together."""
    write(tmp_path, [{"forward": 1.0}] * 2)
    fell = {0: [25, 25, 25, 25], 3: [0, 70, 20, 10]}
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for layer, each in fell.items():
                for expert, choices in enumerate(each):
                    mine = choices + (5 if rank else -5) * (expert == 1) + (layer == 0)
                    writer.write(ExpertSample(4, layer, expert, mine, 0, 0.25))
    found = summary(tmp_path)
    even, uneven = found.experts
    assert (even.layer, uneven.layer, uneven.rank_load) == (0, 3, None)
    assert even.excess == about(0.0) and even.balance == about(1.0)
    assert uneven.load == about([0.0, 0.7, 0.2, 0.1]) and uneven.excess == about(0.45)
    (named_one,) = [one for one in found.verdicts if one.name == "expert_imbalance"]
    assert "in layer 3 70 % of the choices fall on expert 1 of 4" in named_one.evidence
    assert not [
        one for one in judge(found.findings, Thresholds(experts=0.5)) if one.name == "expert_imbalance"
    ]


def test_the_mean_probability_is_over_tokens_where_ranks_have_unequal_numbers(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}] * 2)
    for rank, (choices, probability) in enumerate([((90, 10), (0.8, 0.2)), ((0, 10), (0.1, 0.9))]):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for expert in range(2):
                writer.write(ExpertSample(4, 0, expert, choices[expert], 0, probability[expert]))
    (row,) = summary(tmp_path).experts
    means = [(100 * 0.8 + 10 * 0.1) / 110, (100 * 0.2 + 10 * 0.9) / 110]
    assert row.balance == about(2 * (90 / 110 * means[0] + 20 / 110 * means[1]))


@pytest.mark.parametrize(("most", "told"), [(8, True), (3, False)])
def test_a_late_rank_with_more_of_its_tasks_is_told_to_share_them(
    tmp_path: Path, most: int, told: bool
) -> None:
    """One micro-batch more is what an even deal may leave."""
    late = [{"forward": 0.3, "communication_exposed": 0.7}, {"forward": 0.9, "communication_exposed": 0.1}]
    write(tmp_path, late)
    for rank, counts in enumerate([{"small": 2}, {"large": most - 1, "other": 1}]):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for step in range(STEPS):
                for task, count in counts.items():
                    writer.write(TaskSample(step, task, count, 4.0))
    found = named(summary(tmp_path), "straggler")
    assert found.rank == 1
    shown = f"of its tasks it has {most} micro-batches a step, another rank has 2"
    assert found.evidence.endswith(shown) == told
    assert (found.knobs == ["parallel.task_ranks"]) == told


def test_what_travels_for_others_is_weighed_by_choices_and_old_records_have_none(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}] * 2)
    with RecordWriter(tmp_path, "rank-0") as writer:
        writer.write(ExpertSample(4, 0, 0, 300, 0, 0.5, 30, 0.2))
        writer.write(ExpertSample(4, 0, 1, 100, 0, 0.5, 20, 0.6))
        writer.write(ExpertSample(4, 1, 0, 300, 0, 0.5))
    bucketed, plain = summary(tmp_path).experts
    assert bucketed.sent_fraction == about(50 / 400)
    assert bucketed.residual == about((300 * 0.2 + 100 * 0.6) / 400)
    assert (plain.sent_fraction, plain.residual) == (None, None)


@pytest.mark.parametrize("has_capacities", [True, False])
def test_a_capacity_is_advised_only_where_it_may_be_given(tmp_path: Path, has_capacities: bool) -> None:
    """Whole documents, and rows that travel for others, go without."""
    waits = [{"forward": 0.5, "communication_exposed": 0.5}] * 2
    call = {"axis": "ep", "operation": "all_to_all", "seconds": 0.5, "exposed_seconds": 0.5}
    write(tmp_path, waits, [call])
    for rank in range(2):
        with RecordWriter(tmp_path, f"rank-{rank}") as writer:
            for expert in range(4):
                writer.write(ExpertSample(4, 0, expert, 90 if expert == 1 else 10, 0, 0.25))
    found = summary(tmp_path, Setting(has_capacities=has_capacities), {"ep": 2})
    for name in ("expert_imbalance", "exposed_all_to_all"):
        assert ("model.capacity_factor" in named(found, name).knobs) == has_capacities, name
        assert named(found, name).knobs
