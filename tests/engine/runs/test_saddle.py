"""MASHA on ranks is the one of a plain loop with as many workers, to rounding in float64, and sends what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.config.presets import remember
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.model.workloads.published.saddle import DisturbedNetwork, Quadratics, workload
from engine.rank.workload_report import workload_facts
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.engine.masha import Reference
from tests.support.runs import execute, small

STEPS, RATE, SHARE = 12, 0.15, 0.25


def saddle(method: str, **more: Any) -> RunConfig:
    options = {"method": method, "share": SHARE, "unknowns": 8, "functions": 8}
    wanted = {"model__workload": "saddle", "model__options": options, "train__steps": STEPS}
    return small(**wanted | {"train__learning_rate": RATE, "train__validation_batches": 1} | more)


@pytest.mark.parametrize("method", ["masha1", "masha2", "naive_top"])
def test_two_ranks_are_two_workers_of_a_plain_loop(session: Session, method: str) -> None:
    outcome, summary = execute(session, saddle(method, parallel__dp=2))
    assert outcome.good, outcome
    plain = Reference(Quadratics(8, 8, 0.5, 0), 2, method, SHARE, SHARE)
    for step in range(STEPS):
        plain.step(step, RATE)
    assert 0 < plain.distance < 1
    assert summary.validation_loss == pytest.approx(plain.distance, rel=1e-12)
    # Four of 16 elements, the largest with their places; each rank sends once for an exchange.
    message = 4 * (8 if method == "masha1" else 12)
    exchanges = 2 if method == "naive_top" else 1
    sent = [row for row in summary.communication if row.operation == "send"]
    assert sum(row.bytes for row in sent) == message * exchanges
    waited = [row.exposed_seconds for row in summary.communication if row.operation == "recv"]
    assert sum(waited) > 0, "the server's answer is waited for"


@pytest.fixture(scope="module")
def uncompressed(session: Session) -> RunSummary:
    """The network against a disturbance, with whole operators."""
    return network(session, "plain")


def network(session: Session, method: str) -> RunSummary:
    """Eight images of four pixels a side for each of two ranks."""
    options = {"problem": "adversarial", "method": method, "share": SHARE, "unknowns": 4, "functions": 16}
    more = {
        "batch__global_batch": 16,
        "batch__micro_batch": 8,
        "train__learning_rate": 0.2,
        "train__steps": 30,
    }
    outcome, summary = execute(session, saddle(method, model__options=options, parallel__dp=2, **more))
    assert outcome.good, outcome
    return summary


def sent_bytes(summary: RunSummary, operation: str) -> float:
    """In a step, by a rank's records."""
    return sum(row.bytes for row in summary.communication if row.operation == operation)


@pytest.mark.parametrize("method", ["masha1", "masha2"])
def test_a_network_learns_against_a_disturbance_with_fewer_bytes_than_uncompressed(
    session: Session, uncompressed: RunSummary, method: str
) -> None:
    """A message has a quarter of the elements, MASHA 2 with their places; all of it is sent with a chance of a quarter
    where the uncompressed steps send it twice.
    """
    summary, size = (
        network(session, method),
        sum(one.numel() for one in DisturbedNetwork(48, 0.5).parameters()),
    )
    assert None not in summary.losses
    first, last = (sum(one or 0.0 for one in part) for part in (summary.losses[:3], summary.losses[-3:]))
    assert last < 0.8 * first
    assert summary.metric_name == "robust accuracy" and summary.validation_metric is not None
    assert sent_bytes(uncompressed, "all_reduce") == 2 * 8 * size and not sent_bytes(uncompressed, "send")
    assert sent_bytes(summary, "send") == round(SHARE * size) * (8 if method == "masha1" else 12)
    total = sent_bytes(summary, "send") + sent_bytes(summary, "all_reduce")
    assert 0 < total < 0.6 * sent_bytes(uncompressed, "all_reduce")


def test_five_seeds_come_to_the_solution_and_naive_ones_do_not() -> None:
    """Of the plain loop, which the ranks are equal to."""
    for seed in range(5):
        for method in ("masha1", "masha2", "naive_random", "naive_top"):
            run = Reference(Quadratics(12, 4, 0.5, seed), 2, method, SHARE, SHARE)
            distances = list[float]()
            for step in range(800):
                run.step(step, RATE)
                distances.append(run.distance)
            if method.startswith("masha"):
                assert distances[-1] < 1e-12
                logs = np.log([one for one in distances if one > 1e-12])
                assert np.corrcoef(logs, np.arange(len(logs)))[0, 1] < -0.99, (
                    "on a logarithmic scale it is a line"
                )
            else:
                assert min(distances) > 1e-3, (method, seed)


def test_a_step_sees_all_functions_and_is_the_workloads_own() -> None:
    config = saddle("masha1")
    remember(config.model, workload_facts(config))
    assert not list(rules.problems(config))
    refused = {
        "batch__global_batch": 16, "parallel__zero_stage": 1, "compression__method": "int8", "parallel__pp": 2,
        "checkpoint__every_steps": 2, "precision": "bf16",
    }  # fmt: skip
    for key, value in refused.items():
        more = {"parallel__dp": 2} if "zero" in key or "compression" in key else {}
        fields = [one.field for one in rules.problems(saddle("masha1", **{key: value}, **more))]
        assert key.replace("__", ".") in fields


def test_functions_are_drawn_and_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads them: solved anew, they took longer than all the rest of it."""
    solved, solve = list[Any](), np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *given: solved.append(given) or solve(*given))
    data = Quadratics(9, 4, 0.5, 77)
    first, later = data.training(0, 4), data.training(4, 4)
    assert len(solved) == 1
    assert all(bool((one == other).all()) for one, other in zip(first, later, strict=True))


def test_names_and_shares_are_checked() -> None:
    with pytest.raises(ValueError, match="methods masha1"):
        workload(method="mascha")
    with pytest.raises(ValueError, match="at most 1"):
        workload(share=1.5)
    for name in ("unknowns", "functions"):
        with pytest.raises(ValueError, match=f"{name}=0 has to be a whole number of at least 1"):
            workload(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="penalty=-1"):
        workload(penalty=-1.0)
