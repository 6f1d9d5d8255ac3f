"""Each bottleneck, planted in real ranks, is named first: with its rank, axis, threshold, knob and gain."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.run_config import RunConfig
from engine.config.sections import Lab
from engine.launch.pool import RankHosts
from engine.lifecycle import summary_of
from engine.model.decoder import Decoder
from engine.model.experts.mixture import Router, Routing
from engine.model.workloads import text
from engine.parallel.data.ddp import DataParallel
from engine.parallel.pipeline import PipelineExecutor
from engine.rank import loop
from engine.rank.worker import train_in_group
from engine.run import run_folder
from profilers.model.run_summary import RunSummary
from profilers.model.verdict import Verdict
from profilers.records.reader import RunRecords
from tests.support.engine.lab import needs_lab
from tests.support.ranks import on_ranks_of
from tests.support.runs import small

STEPS = {"train__steps": 10, "train__warmup": 3, "train__validation_batches": 0}
#: Several times as long as a small rank's step takes without a fault, also on a slow machine.
SLEEP_SECONDS = 0.15
LITTLE = {"model__layers": 1, "data__sequence_length": 16}


def planted(folder: Path, fault: str, lab: Lab | None = None, **values: Any) -> RunSummary:
    """The summary of a run whose ranks have a fault."""
    config = small(**STEPS | values)
    (folder / run_folder.RECORDS).mkdir()
    (folder / run_folder.LOGS).mkdir()
    place = RankHosts(lab or Lab())
    parallel = config.parallel
    try:
        on_ranks_of(
            place, parallel.dp * parallel.tp * parallel.pp * parallel.cp, train, config, folder, fault
        )
    finally:
        place.close()
    return summary_of(config, "planted", "gloo", RunRecords(folder / run_folder.RECORDS))


def train(rank: int, config: RunConfig, folder: Path, fault: str) -> bool:
    """One rank of a run, with a fault in it."""
    FAULTS[fault](rank)
    return train_in_group(rank, config, folder, torch.device("cpu"), None)


def sleep_around(owner: Any, name: str) -> None:
    """A function sleeps before it works."""
    whole = getattr(owner, name)

    def slow(*arguments: Any, **named: Any) -> Any:
        time.sleep(SLEEP_SECONDS)
        return whole(*arguments, **named)

    setattr(owner, name, slow)


def slow_loader(rank: int) -> None:
    """Data takes its time on every rank."""
    sleep_around(loop, "micro_batches")


def slow_rank(rank: int) -> None:
    """Rank 1 burns a core in its forward; the others wait for it in their collectives."""
    whole = DataParallel.forward

    def slow(self: DataParallel, *arguments: Any, **named: Any) -> Any:
        until = time.process_time() + SLEEP_SECONDS / 2
        while time.process_time() < until:
            pass
        return whole(self, *arguments, **named)

    if rank == 1:
        DataParallel.forward = slow  # type: ignore[method-assign]


def host_gaps(rank: int) -> None:
    """Python is busy with something between data and the first forward."""
    sleep_around(PipelineExecutor, "run")


def one_expert(rank: int) -> None:
    """Routers send most tokens to expert 2."""
    whole = Router.forward

    def biased(self: Router, tokens: torch.Tensor) -> Routing:
        found = whole(self, tokens)
        chosen = found.experts.clone()
        chosen[: len(chosen) * 3 // 4, 0] = 2
        return Routing(found.probabilities, chosen, found.weights)

    Router.forward = biased  # type: ignore[method-assign]


def skewed_router(rank: int) -> None:
    """Words have a feature in common, by which layer 1's router chooses expert 2; layer 0's does not see it."""
    whole = text.initialize

    def skewed(model: Decoder, *arguments: Any) -> None:
        whole(model, *arguments)
        assert model.embedding is not None
        with torch.no_grad():
            model.embedding.weight[:, 0] = 0.1
            for layer, mixture in model.mixtures().items():
                mixture.router.weight[:, 0] = 0.0
                mixture.router.weight[2, 0] = 10.0 * layer

    text.initialize = skewed


FAULTS = {
    "none": lambda rank: None,
    "one_expert": one_expert,
    "skewed_router": skewed_router,
    "slow_loader": slow_loader,
    "slow_rank": slow_rank,
    "host_gaps": host_gaps,
}


def first(summary: RunSummary) -> Verdict:
    """The verdict that comes first; it must say all that a verdict says."""
    assert summary.verdicts, summary.findings
    found = summary.verdicts[0]
    assert found.evidence
    if found.name != "compute_bound":
        assert found.share is not None and found.threshold is not None
        assert found.share > found.threshold
        assert found.gain is not None and 0 < found.gain.fraction <= 1
    assert set(found.knobs) <= set(RunConfig().flat())
    return found


@pytest.mark.drawn(2, of="planted verdicts")
def test_a_sleeping_loader_is_input_bound(tmp_path: Path) -> None:
    found = first(planted(tmp_path, "slow_loader", **LITTLE))
    assert (found.name, found.threshold_name) == ("input_bound", "input")
    assert found.seconds is not None and found.seconds >= SLEEP_SECONDS
    assert "data.path" in found.knobs


@pytest.mark.drawn(2, of="planted verdicts")
def test_gaps_between_phases_are_host_bound(tmp_path: Path) -> None:
    found = first(planted(tmp_path, "host_gaps", **LITTLE))
    assert (found.name, found.threshold_name) == ("host_bound", "host")
    assert found.seconds is not None and found.seconds >= SLEEP_SECONDS


@pytest.mark.drawn(2, of="planted verdicts")
def test_a_slowed_rank_is_the_straggler_and_not_the_collective_that_waits_for_it(tmp_path: Path) -> None:
    summary = planted(tmp_path, "slow_rank", parallel__dp=2, **LITTLE)
    found = first(summary)
    assert (found.name, found.rank, found.host) == ("straggler", 1, socket.gethostname())
    assert "the slowest in 100 %" in found.evidence
    assert "mostly in forward" in found.evidence
    assert not [one for one in summary.verdicts if one.name.startswith("exposed")]
    assert summary.phases["communication_exposed"] > 0


@pytest.mark.drawn(2, of="planted verdicts")
def test_few_micro_batches_in_a_deep_pipeline_are_a_bubble(tmp_path: Path) -> None:
    config: dict[str, Any] = {"parallel__pp": 4, "batch__global_batch": 4, "batch__micro_batch": 2}
    found = first(planted(tmp_path, "none", **config))
    assert (found.name, found.axis) == ("pipeline_bubble", "pp")
    assert "2 micro-batches" in found.evidence
    assert found.gain is not None and "closed form" in found.gain.formula
    assert {"batch.micro_batch", "schedule.kind"} <= set(found.knobs)


def test_an_expert_that_most_tokens_choose_is_named_with_what_is_dropped(tmp_path: Path) -> None:
    """Recomputed forwards, and those that validate, count nothing; with a capacity factor of 1 what is beyond an even
    load of a rank's tokens is dropped.
    """
    mixed: dict[str, Any] = {
        "model__experts": 4,
        "model__experts_per_token": 1,
        "model__capacity_factor": 1.0,
    }
    ranks = {"parallel__dp": 2, "parallel__ep": 2, "parallel__tp": 2}
    both = mixed | ranks | {"memory__recompute": "full", "train__validation_batches": 1}
    summary = planted(tmp_path, "one_expert", **both | LITTLE)
    (found,) = [one for one in summary.verdicts if one.name == "expert_imbalance"]
    assert "fall on expert 2 of 4 (25 % would be even)" in found.evidence
    assert "found no slot" in found.evidence and "busiest rank of ep" in found.evidence
    assert found.share is not None and found.share >= 0.5 and found.axis == "ep"
    assert {"model.balance_weight", "model.capacity_factor"} == set(found.knobs)
    (row,) = summary.experts
    assert row.load[2] >= 0.75 and row.rank_load == pytest.approx(2 * sum(row.load[2:]))
    assert row.dropped_fraction >= row.excess - 1e-9 > 0.4, "of each rank apart"
    tables = [RunRecords(tmp_path / run_folder.RECORDS).table(rank, "expert") for rank in range(4)]
    assert [len(table) > 0 for table in tables] == [True, False, True, False], "one rank of tp tells"
    last = tables[0].column("step").max()
    rows = [table.column("choices")[table.column("step") == last].filled(0) for table in tables[::2]]
    assert sum(int(row.sum()) for row in rows) == summary.tokens_per_step


def test_a_skewed_router_is_named_by_layer_and_expert(tmp_path: Path) -> None:
    """Weights alone are planted, and hardly learn: the run routes, counts and judges by itself."""
    mixed = {
        "model__layers": 2,
        "model__experts": 4,
        "model__experts_per_token": 1,
        "train__learning_rate": 1e-7,
    }
    ranks = {"parallel__dp": 2, "parallel__ep": 2}
    summary = planted(tmp_path, "skewed_router", **mixed | ranks | {"data__sequence_length": 16})
    (found,) = [one for one in summary.verdicts if one.name == "expert_imbalance"]
    assert found.evidence.startswith("in layer 1 ") and "fall on expert 2 of 4" in found.evidence
    even, skewed = summary.experts
    assert (even.layer, skewed.layer, found.share, found.axis) == (0, 1, skewed.excess, "ep")
    assert skewed.load[2] > 0.9 > max(even.load) and skewed.excess > 0.6 > even.excess
    assert skewed.rank_load == pytest.approx(2 * sum(skewed.load[2:]))


@pytest.mark.drawn(2, of="planted verdicts")
def test_a_healthy_rank_is_compute_bound(tmp_path: Path) -> None:
    summary = planted(tmp_path, "none")
    assert first(summary).name == "compute_bound"
    assert {one.name for one in summary.findings} >= {"input_bound", "host_bound", "compute_bound"}


@pytest.mark.drawn(1)
@needs_lab
@pytest.mark.parametrize(
    ("name", "axis", "rate_mbit", "values"),
    [
        ("exposed_all_reduce", "dp", 100.0, {"parallel__dp": 2}),
        (
            *("exposed_all_gather", "dp", 100.0),
            {"parallel__dp": 2, "parallel__zero_stage": 3, "batch__micro_batch": 4},
        ),
        (
            *("exposed_all_to_all", "cp", 100.0),
            {"parallel__cp": 2, "parallel__cp_method": "ulysses", "batch__global_batch": 32},
        ),
        ("exposed_point_to_point", "pp", 20.0, {"parallel__pp": 2, "data__sequence_length": 128}),
    ],
)
def test_a_starved_link_is_named_by_operation_and_axis(
    tmp_path: Path, name: str, axis: str, rate_mbit: float, values: dict[str, Any]
) -> None:
    starved, few = Lab(hosts=2, rate_mbit=rate_mbit), {"train__steps": 4, "train__warmup": 1}
    found = first(planted(tmp_path, "none", starved, **few | values))
    assert (found.name, found.axis) == (name, axis)
    assert found.bytes is not None and found.bytes > 0
    assert found.threshold_name == "exposed"
