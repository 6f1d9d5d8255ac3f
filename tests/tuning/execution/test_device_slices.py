"""Devices of a host dealt to several controllers of one study, and what is refused."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.run.ownership import Owner
from tests.support.gpu.torch_gpus import torch_can_use
from tests.support.studies.fake import study
from tuning.analysis.conditions import differences
from tuning.execution import device_slices
from tuning.execution.device_slices import ConcurrentTrials, Slice
from tuning.storage.state import Trial

CPU = parse({"device": "cpu"})


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2, 10)))


def test_cores_are_dealt_evenly() -> None:
    assert device_slices.slices(3, 2, CPU) == [Slice((2, 3)), Slice((4, 5)), Slice((6, 7))]
    assert device_slices.slices(2, 1, CPU) == [Slice((2, 3, 4, 5)), Slice((6, 7, 8, 9))]


class Gpus:
    def __init__(self, count: int) -> None:
        self.device_count, self.reason = count, None

    def name(self, gpu: int) -> str:
        return f"GPU {gpu}"

    def is_divided(self, gpu: int) -> bool:
        return False

    def close(self) -> None:
        pass


def test_gpus_are_dealt_by_the_driver_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", lambda: Gpus(8))
    torch_can_use(monkeypatch, 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,1")
    found = device_slices.slices(2, 2, parse({}))
    assert found == [Slice(gpus=(7, 6)), Slice(gpus=(5, 4))]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    found[1].take()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("5,4", "PCI_BUS_ID")
    with pytest.raises(
        InputError, match="side_by_side=3: times 2 ranks is more than this host's 5 GPUs; at most 2"
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,1")
        device_slices.slices(3, 2, parse({}))


@pytest.mark.parametrize(
    ("controllers", "ranks", "config", "simulated", "words"),
    [
        (5, 2, {"device": "cpu"}, False, "this host's 8 cores; at most 4"),
        (2, 16, {"device": "cpu"}, False, "at most 1"),
        (2, 1, {"lab": {"hosts": 2, "rate_mbit": 100.0}}, False, "lab"),
        (2, 1, {}, True, "simulated"),
    ],
)
def test_what_cannot_run_side_by_side(
    controllers: int, ranks: int, config: dict[str, Any], simulated: bool, words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        device_slices.slices(controllers, ranks, parse(config), simulated)
    assert refused.value.field == "side_by_side"


def test_it_may_change_within_a_study_and_is_no_part_of_its_question() -> None:
    assert study(side_by_side=2).fingerprint() == study().fingerprint()
    assert "side_by_side" not in study().resolve()


@dataclass
class Leased:
    number: int
    lease: Owner | None


def test_a_trial_remembers_how_many_ran_beside_it_on_its_host() -> None:
    here, there = Owner(1, 0.0, socket.gethostname()), Owner(1, 0.0, "there")
    alone, beside = ConcurrentTrials(1), ConcurrentTrials(1)
    for others in ([], [Leased(2, here)], [Leased(2, here), Leased(3, there)]):
        alone.look([Leased(1, None), *(other for other in others if other.lease == there)])
        beside.look([Leased(1, here), *others])
    assert alone.readings() == {}
    assert beside.readings() == {"beside": 2 / 3}
    (line,) = differences([beside.readings()], [{"beside": 0.0}], ("the winner", "the baseline"))
    assert "the number of trials beside them differed" in line


def test_a_trial_beside_others_races_only_against_such() -> None:
    from tuning.analysis.early_stop import leader_of
    from tuning.storage.state import StudyState

    file = study()
    point = file.search_space.baseline[0]

    def leading(beside: dict[str, float], running: int) -> bool:
        done = Trial(0, point, "baseline", outcome="completed", value=9.0, low=8.9, high=9.1,
                     samples=(9.0, 9.1, 8.9), conditions=beside)  # fmt: skip
        under_way = tuple(Trial(number, point, "sampler") for number in range(1, 1 + running))
        return leader_of(StudyState(trials=(done, *under_way)), file) is not None

    assert leading({}, 1) and leading({"beside": 1.0}, 2)
    assert not leading({}, 2) and not leading({"beside": 1.0}, 1)
