"""Where the steps and phases of loops begin and end that are not as plain as one model with one optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from profilers import torch_private
from profilers.rank import job_rank as seats
from profilers.rank.job_rank import RankRegistration
from profilers.rank.phases import JobTimer, outermost
from profilers.rank.recording import RankRecording
from profilers.rank.waits import TensorWaits, axis_of
from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.steps.clock import CpuClock
from profilers.steps.shared_status import SharedStatus


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RankRecording]:
    """Of this process, without the door through which a job comes in."""
    for part in (seats.SEATS, seats.RECORDS):
        (tmp_path / part).mkdir()
    claimed = seats.claim(tmp_path, 0, 1)
    assert isinstance(claimed, RankRegistration)
    made = RankRecording(claimed)
    yield made
    made.close()


def _step(recording: RankRecording, optimizer: torch.optim.Optimizer) -> None:
    """As torch calls its hooks."""
    recording.optimizer_began(optimizer)
    optimizer.step()
    recording.end_optimizer(optimizer)


def _table(recording: RankRecording) -> Table:
    recording.close()
    return RunRecords(recording.seat.folder / seats.RECORDS).table(0, "step")


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_of_several_optimizers_the_first_one_ends_the_steps(recording: RankRecording) -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [_sgd(one), _sgd(other)]
    for _ in range(5):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            model(torch.ones(1, 4)).sum().backward()
            _step(recording, optimizer)
    assert _table(recording).column("step").tolist() == [1, 2, 3, 4]


def test_a_loop_with_another_optimizer_goes_on_with_that(recording: RankRecording) -> None:
    model = nn.Linear(4, 4)
    for steps in (3, 4):
        optimizer = _sgd(model)
        for _ in range(steps):
            model(torch.ones(1, 4)).sum().backward()
            _step(recording, optimizer)
    # The second one leads once it has stepped twice, at the latest.
    assert len(_table(recording)) >= 4


def test_an_optimizer_inside_another_is_a_part_of_it(recording: RankRecording) -> None:
    model = nn.Linear(4, 4)
    outer, inner = _sgd(model), _sgd(model)
    for _ in range(4):
        recording.optimizer_began(outer)
        _step(recording, inner)
        recording.end_optimizer(outer)
    assert _table(recording).column("step").tolist() == [1, 2, 3]


def test_a_step_with_an_evaluation_is_not_measured(recording: RankRecording) -> None:
    model = nn.Linear(4, 4)
    optimizer = _sgd(model)
    for step in range(8):
        if step == 5:
            model.eval()
            with torch.no_grad():
                model(torch.ones(1, 4))
            model.train()
        model(torch.ones(1, 4)).sum().backward()
        _step(recording, optimizer)
    table = _table(recording)
    measured = dict(zip(table.column("step").tolist(), table.column("measured").tolist(), strict=True))
    assert measured == {1: False, 2: True, 3: True, 4: True, 5: False, 6: True, 7: True}


def test_where_all_steps_evaluate_it_is_a_part_of_them(recording: RankRecording) -> None:
    model = nn.Linear(4, 4)
    optimizer = _sgd(model)
    for _ in range(7):
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 4))
        model.train()
        model(torch.ones(1, 4)).sum().backward()
        _step(recording, optimizer)
    assert _table(recording).column("measured").tolist() == [False] + [True] * 5


class _Wrapper(nn.Module):
    """Its own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"model": nn.Linear(4, 4)})


def test_forwards_are_found_below_a_wrapper(recording: RankRecording) -> None:
    wrapper = _Wrapper()
    optimizer = _sgd(wrapper)
    for _ in range(6):
        wrapper.inner["model"](torch.ones(1, 4)).sum().backward()
        _step(recording, optimizer)
    forward = _table(recording).column("forward_seconds").tolist()
    assert forward[0] == 0.0
    assert forward[-1] > 0.0


def test_modules_that_hold_the_parameters_and_are_part_of_no_other() -> None:
    inner = nn.Linear(2, 2)
    outer, unrelated = nn.Sequential(inner, nn.ReLU()), nn.Linear(2, 2)
    assert outermost(inner.parameters()) == [outer]
    assert outermost(unrelated.parameters()) == [unrelated]


def test_after_it_torch_is_as_it_was(recording: RankRecording) -> None:
    names = [(torch.autograd, "backward"), (torch_private.DATA_ITERATOR, "__next__")]
    before = [getattr(owner, name) for owner, name in names]
    model = nn.Linear(4, 4)
    optimizer = _sgd(model)
    for _ in range(3):
        _step(recording, optimizer)
    assert all(getattr(owner, name) is not old for (owner, name), old in zip(names, before, strict=True))
    recording.close()
    assert [getattr(owner, name) for owner, name in names] == before


def test_the_page_says_where_the_rank_stands(recording: RankRecording, tmp_path: Path) -> None:
    page = SharedStatus(tmp_path / seats.PROGRESS)
    assert page.world_size == 1
    page.close()
    model = nn.Linear(4, 4)
    optimizer = _sgd(model)
    seen = []

    def look(*_: object) -> None:
        seen.append(recording.steps().timer.step)

    model.register_forward_hook(look)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        _step(recording, optimizer)
    assert seen[-1] == 2


@pytest.mark.parametrize(
    ("described", "size", "name"),
    [("mesh_tp", 1, "tp"), ("default_pg", 1, "world"), ("undefined", 2, "group")],
)
def test_a_group_has_the_name_of_its_dimension(described: str, size: int, name: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert axis_of(SimpleNamespace(group_desc=described, size=lambda: size)) == name  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()


def test_waits_for_tensors_of_functional_collectives_are_noted() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    timer = JobTimer(CpuClock())
    waits = TensorWaits(timer, lambda: True)
    try:
        timer.begin(0)
        found = torch_private.functional_collectives.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        assert (found + 1).tolist() == [2.0] * 4
        noted, _ = timer.take()
        assert [kind for *_, kind in noted] == [None]
        assert all(end >= begin for begin, end, _ in noted)
    finally:
        waits.stop()
        dist.destroy_process_group()


def test_a_seat_is_taken_once_and_again_after_a_restart(
    recording: RankRecording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = seats.claim(tmp_path, 0, 1)
    assert isinstance(refused, str)
    assert "came as rank 0 after process" in refused
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = seats.claim(tmp_path, 0, 1)
    assert isinstance(again, RankRegistration)
    assert again.restarted
