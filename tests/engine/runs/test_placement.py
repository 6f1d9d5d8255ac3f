"""Ranks on the devices that ``parallel.placement`` gives them: the same numbers, other places, and both are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import LayoutError
from engine.config.formulas.network import Shape
from engine.config.layout import devices_of
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import check
from engine.launch.lab import lab
from engine.launch.pool import RankHosts
from engine.run import run_folder
from engine.run.messages import LabPlacement
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.engine.lab import needs_lab
from tests.support.runs import execute, small

THIN: dict[str, Any] = {"model__layers": 2, "model__hidden": 32, "model__ffn_hidden": 64}
ISLANDS = {"islands": [2, 2], "rates_mbit": [400.0, 200.0], "between_mbit": 100.0}
TWO = Shape((2, 2), (400_000, 200_000), 100_000)


def placed(order: list[int] | None, **values: Any) -> RunConfig:
    return small(**THIN, **values, parallel__placement=order)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 1], r"placement=\[0, 1\]: places 2 ranks, and this layout has 4; give each of 0 to 3 once"),
        ([0, 1, 1, 2], "device 1 is given to more than one rank; give each of 0 to 3 once"),
        ([0, 1, 2, 4], "there is no device 4; give each of 0 to 3 once"),
        (list(range(5000)), r"placement='\[0, .*, 15, ...\]': places 5,000 ranks, and this layout has 4"),
    ],
)
def test_a_placement_gives_each_device_once(order: list[int], words: str) -> None:
    with pytest.raises(LayoutError, match=words) as refused:
        check(placed(order, parallel__dp=4))
    assert len(str(refused.value)) < 250
    check(placed([3, 1, 0, 2], parallel__dp=4))


def test_devices_are_those_of_the_placement_or_ranks_in_order() -> None:
    assert devices_of(parse({"parallel": {"dp": 2, "pp": 2}})) == (0, 1, 2, 3)
    assert devices_of(parse({"parallel": {"dp": 2, "pp": 2, "placement": [2, 0, 3, 1]}})) == (2, 0, 3, 1)
    assert TWO.hosts_of_ranks([3, 4, 0, 1, 2, 7, 6, 5]) == [1, 2, 0, 0, 1, 3, 3, 2]


def seats(order: list[int]) -> list[LabPlacement]:
    """Of a lab that is not set up: only names count."""
    place = RankHosts.__new__(RankHosts)
    place._lab = lab.make_process_lab(TWO)
    found = [place.placement_of(rank, order) for rank in range(len(order))]
    return [seat for seat in found if seat is not None]


def test_a_rank_sits_on_the_host_of_its_device_and_counts_what_is_there() -> None:
    found = seats([3, 0, 2, 1])
    assert [seat.host for seat in found] == [3, 0, 2, 1]
    data = [next(one for one in seat.interfaces if one.name == "data") for seat in found]
    assert [one.ranks for one in data] == [(0,), (1,), (2,), (3,)]
    assert [one.rate_mbit for one in data] == [200.0, 400.0, 200.0, 400.0]
    uplinks = [[one.ranks for one in seat.interfaces if one.name == "uplink"] for seat in found]
    assert uplinks == [[(0, 2)], [(1, 3)], [], []]


def run(session: Session, config: RunConfig) -> tuple[list[float | None], Path]:
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert len(summary.losses) == 3
    return summary.losses, session.home / summary.id


def told(folder: Path) -> list[tuple[int, str]]:
    """The device and the host that each rank recorded."""
    records = RunRecords(folder / run_folder.RECORDS)
    events = [
        event.data
        for rank in records.ranks()
        for event in records.events(rank)
        if event.kind == "environment"
    ]
    return [(event["device_number"], event["host"]) for event in events]


@pytest.mark.parametrize(
    "values",
    [
        {"parallel__dp": 2, "parallel__pp": 2},
        {"parallel__dp": 2, "parallel__tp": 2, "parallel__zero_stage": 3},
    ],
    ids=str,
)
def test_losses_are_the_same_to_the_last_bit_and_workers_stay_on_their_device(
    session: Session, values: dict[str, Any]
) -> None:
    losses, folder = run(session, placed(None, **values))
    again, other = run(session, placed([2, 0, 3, 1], **values))
    assert again == losses
    first, second = (run_folder.read_json(one / run_folder.STATUS) or {} for one in (folder, other))
    assert (first["placement"], second["placement"]) == (None, [2, 0, 3, 1])
    assert second["rank_pids"] == [first["rank_pids"][device] for device in (2, 0, 3, 1)]
    assert [device for device, _ in told(folder)] == [0, 1, 2, 3]
    assert [device for device, _ in told(other)] == [2, 0, 3, 1]


@pytest.fixture(scope="module")
def in_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs in one lab of two islands."""
    with Session(tmp_path_factory.mktemp("lab")) as warm:
        yield warm


@needs_lab
def test_ranks_of_a_lab_are_on_the_hosts_of_their_devices(in_lab: Session) -> None:
    values = {"parallel__dp": 2, "parallel__pp": 2}
    losses, _ = run(in_lab, placed(None, **values).with_values({"lab": ISLANDS}))
    again, folder = run(in_lab, placed([0, 2, 1, 3], **values).with_values({"lab": ISLANDS}))
    assert again == losses
    assert [host.rpartition(" ")[2] for _, host in told(folder)] == ["0", "2", "1", "3"]
    assert (run_folder.read_json(folder / run_folder.STATUS) or {})["lab_hosts"] == [0, 2, 1, 3]


@needs_lab
def test_what_crosses_islands_follows_the_placement(in_lab: Session) -> None:
    """dp sends whole gradients, the pipeline next to nothing: with pairs of dp on one island little crosses."""
    values = {"parallel__dp": 2, "parallel__pp": 2, "batch__micro_batch": 4, "data__sequence_length": 8}
    crossed = []
    for order in (None, [0, 2, 1, 3]):
        config = placed(order, **values).with_values({"lab": ISLANDS})
        _, summary = execute(in_lab, config)
        sent = [row.sent_bytes_per_second for row in summary.interfaces if row.interface == "uplink"]
        assert summary.step_seconds is not None
        crossed.append(sum(sent) * summary.step_seconds.median)
    assert crossed[1] > 2 * crossed[0]
