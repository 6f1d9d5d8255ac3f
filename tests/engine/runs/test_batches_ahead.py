"""Batches that are made before their step: the same ones, never more of them than was said."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.config.validation.rules import problems
from engine.model.workloads.batches_ahead import PrefetchedBatches
from engine.session import Session
from tests.support.engine.own_models import HERE
from tests.support.runs import execute, small
from workbench.text import step

SLOW = f"{HERE}:slowly"


class Counted:
    """Numbered samples; ``begun`` are the training batches that somebody began to make, each once it is let."""

    def __init__(self, free: bool = True) -> None:
        self.begun: list[tuple[int, int]] = []
        self.threads = set[int]()
        self.free = threading.Event()
        if free:
            self.free.set()

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        self.begun.append((first, count))
        self.threads.add(threading.get_ident())
        assert self.free.wait(30)
        if first < 0:
            raise ValueError("no such sample")
        return torch.arange(first, first + count), torch.zeros(count)

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        self.threads.add(threading.get_ident())
        return torch.arange(first, first + count) + 1000, torch.zeros(count)


@pytest.mark.parametrize("registers", [1, 2, 3])
def test_no_more_are_made_than_there_are_registers(registers: int) -> None:
    samples = Counted()
    ahead = PrefetchedBatches(samples, registers)
    for place in range(6):
        found, _ = ahead.training(8 * place, 4)
        assert found.tolist() == list(range(8 * place, 8 * place + 4))
        assert len(samples.begun) <= place + 1 + registers
        ahead.expect(8 * (place + 1), 4, 8)
        assert ahead.validation(0, 2)[0].tolist() == [1000, 1001]  # after all that was begun before
        assert len(samples.begun) == place + 1 + registers
    ahead.close()
    assert samples.begun[:6] == [(8 * place, 4) for place in range(6)]
    assert ahead.use.asked == 6 and ahead.use.ready == 5 and ahead.use.dropped == 0
    assert len(samples.threads) == 1 and threading.get_ident() not in samples.threads


def test_who_goes_back_or_takes_more_gets_what_was_asked_for() -> None:
    ahead = PrefetchedBatches(Counted(), 2)
    ahead.expect(8, 4, 8)
    assert ahead.training(0, 4)[0].tolist() == [0, 1, 2, 3]
    assert ahead.use.dropped == 2
    ahead.expect(8, 4, 8)
    ahead.expect(8, 6, 12)  # a larger batch from now on
    assert ahead.use.dropped == 4
    assert ahead.training(8, 6)[0].tolist() == list(range(8, 14))
    assert ahead.training(20, 6)[0].tolist() == list(range(20, 26))
    ahead.close()


def test_what_is_not_ready_is_waited_for_and_what_fails_raises() -> None:
    samples = Counted(free=False)
    ahead = PrefetchedBatches(samples, 1)
    ahead.expect(0, 2, 2)
    threading.Timer(0.05, samples.free.set).start()
    ahead.training(0, 2)
    assert (ahead.use.asked, ahead.use.ready) == (1, 0) and ahead.use.waited_seconds > 0
    ahead.expect(-5, 2, 2)
    with pytest.raises(ValueError, match="no such sample"):
        ahead.training(-5, 2)
    ahead.close()


@pytest.mark.parametrize(
    "values",
    [
        {"model__workload": SLOW, "parallel__dp": 2},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__pp": 2},
        {"batch__ramp_from": 4, "batch__global_batch": 8, "train__steps": 6},
    ],
    ids=["slow", "zero3", "pipeline", "ramp"],
)
def test_losses_are_the_same_to_the_bit(values: dict[str, Any], session: Session) -> None:
    found = {}
    for ahead in (0, 2):
        config = small(**values).with_values({"data.ahead": ahead, "train.validation_batches": 1})
        outcome, found[ahead] = execute(session, config)
        assert outcome.good, outcome
    plain, summary = found[0], found[2]
    assert summary.losses == plain.losses and summary.validation_loss == plain.validation_loss
    rows = summary.batches_ahead
    assert [row.rank for row in rows] == list(range(summary.world_size)) and not plain.batches_ahead
    steps = len(summary.losses)
    assert all((row.registers, row.asked) == (2, steps) and row.ready < steps for row in rows)
    if values.get("model__workload") == SLOW:  # each takes 20 ms at the least
        assert all(row.made_seconds >= 0.02 * steps for row in rows)
    assert f"of {steps * len(rows)} that steps asked for" in step.batches_ahead(rows)


@pytest.mark.parametrize("ahead", [-1, 65, "two"])
def test_a_number_that_is_none_is_refused(ahead: Any) -> None:
    with pytest.raises(InputError) as refused:
        parse({"data": {"ahead": ahead}})
    assert refused.value.field == "data.ahead"


def test_whole_documents_have_a_plan_of_their_own() -> None:
    found = [str(one) for one in problems(parse({"data": {"documents": "whole", "ahead": 2}}))]
    assert any(line.startswith("data.ahead=2: their plan is made ahead already") for line in found), found
