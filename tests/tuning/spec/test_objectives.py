"""Objectives, constraints, fronts and budgets by themselves: what a summary amounts to, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config.errors import InputError
from profilers.model.machine_rows import GpuRow, HostRow
from profilers.model.rows import QualityRow
from profilers.model.run_summary import MemoryRow, RunSummary
from tests.support.gpu.fake_nvml import NOT_SUPPORTED, NVMLError, open_fake_nvml
from tests.support.gpu.torch_gpus import torch_can_use
from tests.support.studies.weighed import GIB, asked
from tuning.analysis import constraints, leaderboard
from tuning.analysis.constraints import constraint_checks
from tuning.analysis.measures import headroom, measure, measures
from tuning.execution import preflight
from tuning.report.study_result import StudyResult
from tuning.spec.objectives import KNOWN, Aim, MeasuredValue, likelihood, text
from tuning.spec.terms import Constraints
from tuning.storage.state import Trial

PRICE = {"per_gpu_hour": 2.0, "currency": "EUR"}
#: 100 tokens a step of 0.5 s on 4 ranks.
SUMMARY = replace(
    RunSummary.from_dict(
        {
            "id": "r", "layout": {}, "world_size": 4, "backend": "gloo", "parameters": 1, "tokens_per_step": 100,
            "tokens_per_second": 200.0, "tokens_per_second_interval": {"low": 160.0, "high": 250.0},
            "step_samples": [0.5, 0.4, 0.5, 0.625], "mfu": 0.4, "joules_per_step": 300.0, "peak_memory_bytes": 3 * GIB,
        }
    ),
    quality=[QualityRow(4, 3.0, 2.0), QualityRow(8, 2.0, 4.0)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("aim", "natural", "shown", "unit"),
    [
        (Aim("tokens_per_second"), (200, 160, 250), 200, "tokens/s"),
        (Aim("step_seconds"), (0.5, 0.4, 0.625), 500, "ms"),
        (Aim("mfu"), (0.4, 0.32, 0.5), 40, "% MFU"),
        (
            Aim("money_per_billion_tokens", None, "EUR", 2.0),
            (8 / 3600 / 200 * 1e9, 8 / 3600 / 250 * 1e9, 8 / 3600 / 160 * 1e9),
            8 / 3600 / 200 * 1e9,
            "EUR/billion tokens",
        ),
        (Aim("joules_per_token"), (3.0, None, None), 3, "J/token"),
        (Aim("peak_memory_bytes"), (3 * GIB, None, None), 3, "GiB"),
        (Aim("time_to_loss", 2.5), (4.0, 3.2, 5.0), 4, "s"),
    ],
)
def test_every_objective_comes_from_a_summary(aim: Aim, natural: Any, shown: float, unit: str) -> None:
    found = measure(SUMMARY, aim)
    assert found is not None
    assert aim.unit == unit
    told = measures(SUMMARY, aim, None)[aim.name]
    assert [told.value, told.low, told.high] == pytest.approx(list(natural))
    assert aim.to_display(found.value) == pytest.approx(shown)
    assert aim.to_stored(natural[0]) == pytest.approx(found.value)
    if aim.objective.single:
        assert found.samples == [found.value]
        return
    assert found.low is not None and found.low < found.value < (found.high or 0), "kept: larger is better"
    assert aim.to_display(found.samples[1]) == pytest.approx(
        natural[0] * 0.8 ** _sign(aim) * aim.objective.factor
    )


def _sign(aim: Aim) -> int:
    """A step that takes 0.8 of the time is better in every one of them."""
    return 1 if aim.objective.lower else -1


def test_what_was_not_measured_has_a_reason() -> None:
    bare = replace(SUMMARY, mfu=None, mfu_reason="a CPU has no published peak", joules_per_step=None)
    found = measures(replace(bare, joules_reason="no rank computes on a GPU"), Aim(), None)
    assert found["joules_per_token"] == MeasuredValue(reason="no rank computes on a GPU")
    assert found["mfu"].reason == "a CPU has no published peak"
    assert found["money_per_billion_tokens"].reason == "the study has no price"
    assert found["memory_headroom"].value is None
    assert set(found) == {*KNOWN, "memory_headroom"}


def test_headroom_is_what_the_fullest_rank_leaves_of_its_own_memory() -> None:
    rows = [MemoryRow(rank, "resident set", (rank + 1) * GIB, None, 0) for rank in range(4)]
    told = replace(SUMMARY, memory=rows)
    assert headroom(told, 5.0) == pytest.approx(0.2)
    host = HostRow(None, [0, 1, 2, 3], 9, memory_total_bytes=32 * GIB)
    assert headroom(replace(told, hosts=[host]), None) == pytest.approx(0.5)
    assert headroom(told, None) is None
    assert headroom(replace(told, memory=rows[:3]), 5.0) is None, "a rank that told nothing may have less"
    on_gpus = [replace(row, kind="CUDA allocator") for row in rows]
    gpus = [GpuRow(gpu, 9, memory_total_bytes=16 * GIB, ranks=[gpu]) for gpu in range(4)]
    assert headroom(replace(told, memory=on_gpus, gpus=gpus), 5.0) == pytest.approx(0.75)
    assert headroom(replace(told, memory=on_gpus, gpus=gpus[:3]), None) is None
    outside = [replace(row, outside_allocator_bytes=GIB) for row in on_gpus]
    less = headroom(replace(told, memory=outside, gpus=gpus), None)
    assert less == pytest.approx(0.75 - GIB / (gpus[0].memory_total_bytes or 0)), (
        "contexts and NCCL's buffers"
    )


def test_constraints_are_kept_broken_or_undecided() -> None:
    wanted = Constraints(memory_headroom=0.1, joules_per_token=2.0, max_step_seconds=1.0)
    found = measures(replace(SUMMARY, memory=[]), Aim(), None)
    free, energy, step = constraint_checks(wanted, found)
    assert (free.state, free.violation) == ("undecided", None)
    assert (energy.state, energy.violation) == ("violated", pytest.approx(0.5))
    assert energy.reason == "energy of a token 3 J, at most 2 J asked for: missed by 50 % of the bound"
    assert (step.state, step.violation) == ("satisfied", pytest.approx(-0.5))
    told = constraints.violations([free, energy, step])
    assert told["memory_headroom_undecided"] == constraints.UNDECIDED_VIOLATION
    assert told["joules_per_token"] > told["memory_headroom_undecided"] > 0 > told["max_step_seconds"]
    assert all(map(constraints.is_about, told)) and not constraints.is_about("oom")
    assert constraint_checks(None, found) == []


def test_of_several_runs_memory_holds_each_time_and_what_noise_moves_in_the_mean() -> None:
    def over(name: str, measure: str, bound: float, *values: float | None) -> constraints.ConstraintCheck:
        runs = [{measure: MeasuredValue(value)} if value is not None else {} for value in values]
        (found,) = constraints.check_runs(Constraints(**{name: bound}), runs)
        return found

    assert over("memory_headroom", "memory_headroom", 0.1, 0.3, 0.05, 0.2).measured == 0.05
    assert over("memory_headroom", "memory_headroom", 0.1, 0.3, None).state == "undecided"
    assert over("memory_headroom", "memory_headroom", 0.1, 0.05, None).state == "violated"
    late = over("max_step_seconds", "step_seconds", 1.0, 0.9, 1.05, 0.9)
    assert (late.state, late.measured) == ("satisfied", pytest.approx(0.95))
    assert over("max_step_seconds", "step_seconds", 1.0, 1.1, 1.05, 0.9).state == "violated"
    assert over("max_step_seconds", "step_seconds", 1.0, None, None).state == "undecided"


def trial(number: int, **values: float | None) -> Trial:
    told = {name: MeasuredValue(value) for name, value in values.items()}
    return Trial(number, {}, "sampler", outcome="completed", value=1.0, measures=told)


def test_a_front_holds_what_nothing_beats() -> None:
    aims = [Aim("tokens_per_second"), Aim("peak_memory_bytes")]
    trials = [
        trial(0, tokens_per_second=10.0, peak_memory_bytes=5.0),
        trial(1, tokens_per_second=20.0, peak_memory_bytes=9.0),
        trial(2, tokens_per_second=9.0, peak_memory_bytes=5.0),
        trial(3, tokens_per_second=20.0, peak_memory_bytes=9.0),
        trial(4, tokens_per_second=99.0, peak_memory_bytes=None),
        trial(5, tokens_per_second=1.0, peak_memory_bytes=1.0),
    ]
    assert [one.number for one in leaderboard.pareto_front(trials, aims)] == [1, 3, 0, 5]
    assert leaderboard.pareto_front([], aims) == []
    assert not leaderboard.pareto_note(aims)
    assert "step_seconds and mfu rank trials alike" in leaderboard.pareto_note(
        [Aim("step_seconds"), aims[1], Aim("mfu")]
    )


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"objective": ["mfu", "mfu"]}, "objective", "named twice"),
        ({"objective": ["mfu", "speed"]}, "objectives.1", "'tokens_per_second'"),
        ({"prefer": "mfu"}, "prefer", "needs several objectives"),
        (
            {"objective": ["mfu", "step_seconds"], "prefer": "tokens_per_second"},
            "prefer",
            "choose from mfu, step",
        ),
        ({"objective": "money_per_billion_tokens"}, "objective", "needs a price"),
        ({"budget": {"money": 5}}, "budget.money", "needs a price"),
        (
            {"constraints": {"money_per_billion_tokens": 5}},
            "constraints.money_per_billion_tokens",
            "needs a price",
        ),
        ({"price": {"per_gpu_hour": 0}}, "price.per_gpu_hour", "above 0"),
        ({"budget": {"trials": 40}}, "budget.trials", "trials is 9; keep one of them"),
        ({"budget": {"wall_seconds": 4}, "budget_seconds": 5}, "budget.wall_seconds", "budget_seconds is 5"),
        ({"constraints": {"memory_headroom": 1.0}}, "constraints.memory_headroom", "below 1"),
        ({"constraints": {"memory": 1.0}}, "constraints.memory", "unknown key"),
        ({"objective": ["mfu", {"time_to_loss": 2}]}, "base.train.validate_every", "must be given"),
    ],
)
def test_what_a_study_cannot_want(more: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(**more)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_budget_may_grow_and_a_question_may_not_change() -> None:
    first = asked(objective=["tokens_per_second", "peak_memory_bytes"], constraints={"memory_headroom": 0.1})
    same = {"objective": ["tokens_per_second", "peak_memory_bytes"], "constraints": {"memory_headroom": 0.1}}
    assert asked(**same, budget={"gpu_hours": 3}).fingerprint() == first.fingerprint()
    assert asked(**same, prefer="peak_memory_bytes").fingerprint() != first.fingerprint()
    assert asked(**same, prefer="tokens_per_second").fingerprint() == first.fingerprint()
    assert asked(**same | {"constraints": {"memory_headroom": 0.2}}).fingerprint() != first.fingerprint()
    assert set(asked().resolve()).isdisjoint({"objectives", "prefer", "price", "constraints", "budget"})
    assert asked(objective=["mfu"]).fingerprint() == asked(objective="mfu").fingerprint()


def test_documents_of_before_mean_tokens_per_second() -> None:
    assert StudyResult.from_dict({}).aim == StudyResult.from_dict({"objective": None}).aim == Aim()
    assert StudyResult.from_dict({"objective": "mfu"}).aims == (Aim("mfu"),)
    told = {"objective": "mfu", "objectives": ["mfu", "money_per_billion_tokens"], "price": PRICE}
    assert [aim.unit for aim in StudyResult.from_dict(told).aims] == ["% MFU", "EUR/billion tokens"]
    assert [text(value) for value in (None, 12345.6, 99.94, 0.01234)] == ["—", "12,346", "99.9", "0.0123"]


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        (
            {"objective": "joules_per_token"},
            "objective",
            "joules are not measured on this machine: ranks run on CPUs",
        ),
        ({"objective": "mfu"}, "objective", "a CPU has no published peak"),
        (
            {"constraints": {"joules_per_token": 1}},
            "constraints.joules_per_token",
            "not measured on this machine",
        ),
    ],
)
def test_what_a_machine_cannot_measure_is_refused(more: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        preflight.check(asked(base={"device": "cpu"}, **more))
    assert caught.value.field == field
    preflight.check(asked(objective=["step_seconds", "peak_memory_bytes"]))


def test_gpus_that_tell_their_energy_can_be_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_can_use(monkeypatch, 2)
    wanted = asked(ranks=2, space={"batch.micro_batch": [1, 2]}, objective=["joules_per_token", "mfu"])
    preflight.check(wanted, open_fake_nvml()[0])
    silent = open_fake_nvml(
        {"nvmlDeviceGetTotalEnergyConsumption": NVMLError("Not Supported", NOT_SUPPORTED)}
    )[0]
    with pytest.raises(InputError, match="the driver does not report those of NVIDIA H100"):
        preflight.check(wanted, silent)


def test_memory_that_is_not_recorded_cannot_be_weighed() -> None:
    base = {"profile": {"memory": False}}
    with pytest.raises(InputError, match=r"base.profile.memory=false"):
        preflight.check(asked(base=base, objective="peak_memory_bytes"))
    preflight.check(asked(base=base))


@pytest.mark.parametrize(
    ("probability", "told"), [(0.9996, "over 99 %"), (0.994, "99 %"), (0.5, "50 %"), (0.002, "under 1 %")]
)
def test_what_is_not_decided_is_never_told_as_certain(probability: float, told: str) -> None:
    assert likelihood(probability) == told
