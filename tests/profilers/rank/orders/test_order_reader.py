"""When a foreign job's rank takes an order, what it does not take, and what a restart leaves of earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from profilers.rank.job_rank import ORDERS, RankRegistration
from profilers.rank.orders.effective_step import EVENT
from profilers.rank.orders.order_reader import JobOrders
from profilers.steps.shared_status import SharedStatus, shared_page


class Told(list[tuple[int, str, str | None]]):
    """Step, id and problem of each answer."""

    def __call__(self, kind: str, **what: object) -> None:
        assert kind == EVENT
        self.append((int(str(what["step"])), str(what["id"]), what["problem"] and str(what["problem"])))  # type: ignore[arg-type]


def _asked(folder: Path, page: SharedStatus, number: int, command: str) -> None:
    (folder / ORDERS).mkdir(exist_ok=True)
    order = {"number": number, "id": f"id-{number}", "command": command, "steps": 1}
    (folder / ORDERS / f"{number}.json").write_text(json.dumps(order))
    page.request_order(number)


def _orders(folder: Path, page: SharedStatus, rank: int, told: Told, restarted: bool = False) -> JobOrders:
    return JobOrders(RankRegistration(folder, rank, 2, {}, restarted), torch.device("cpu"), page, told)


def test_both_ranks_take_an_order_at_the_same_step_and_tell_of_it(tmp_path: Path) -> None:
    page = shared_page(tmp_path / "progress", 2)
    told = [Told(), Told()]
    ranks = [_orders(tmp_path, page, rank, told[rank]) for rank in range(2)]
    assert [one.begin_step(4) for one in ranks] == [False, False]
    _asked(tmp_path, page, 1, "snapshot")
    disturbed = [[one.begin_step(step) for one in ranks] for step in range(5, 10)]
    assert disturbed == [[False] * 2, [False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert told == [[(8, "id-1", None)]] * 2
    for rank in range(2):
        assert (
            json.loads((tmp_path / "snapshots" / "step-8" / f"rank-{rank}.json").read_text())["rank"] == rank
        )
    _asked(tmp_path, page, 2, "evaluate")
    assert not any(one.begin_step(step) for step in range(10, 14) for one in ranks)
    assert [(step, why is not None and "evaluate" in why) for step, _, why in told[1][1:]] == [(12, True)]


def test_ranks_that_were_started_again_do_not_do_an_order_twice(tmp_path: Path) -> None:
    page, told = shared_page(tmp_path / "progress", 1), Told()
    before = _orders(tmp_path, page, 0, told)
    _asked(tmp_path, page, 1, "snapshot")
    for step in range(40, 45):
        before.begin_step(step)
    again = _orders(tmp_path, page, 0, told, restarted=True)
    assert not any(again.begin_step(step) for step in range(1, 50))
    _asked(tmp_path, page, 2, "snapshot")
    assert [again.begin_step(step) for step in range(50, 54)] == [False, False, True, True]
    assert [key for _, key, _ in told] == ["id-1", "id-2"]


def test_an_order_before_a_step_that_begins_anew_is_begun_once(tmp_path: Path) -> None:
    page, told = shared_page(tmp_path / "progress", 1), Told()
    orders = _orders(tmp_path, page, 0, told)
    _asked(tmp_path, page, 1, "trace")
    for step in (1, 1, 2, 3, 3, 4, 4, 5, 5, 6):
        orders.begin_step(step)
    assert [(step, why) for step, _, why in told] == [(5, None)]
    assert (tmp_path / "traces" / "step-4-1" / "rank-0.json.gz").is_file()
