"""Groups over networks by where their members are: the same losses, bytes by formula on each card, told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from engine.config.formulas.network import DATA, INSIDE
from engine.launch.pool import LocalPool, RankHosts
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.engine.lab import needs_lab
from tests.support.runs import execute, small

pytestmark = needs_lab

SECOND = {"islands": [2, 2], "rate_mbit": 200.0, "between_mbit": 100.0, "inside_mbit": 400.0}
#: Gradients of data ranks, which share a stage, and messages of pipelines.
VALUES: dict[str, Any] = {
    "parallel__dp": 2,
    "parallel__pp": 2,
    "model__layers": 2,
    "model__hidden": 64,
    "model__ffn_hidden": 128,
    "train__steps": 6,
}
ETHERNET = 1514 / 1448


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs in one lab."""
    with Session(tmp_path_factory.mktemp("home"), LocalPool()) as warm:
        yield warm


def run(session: Session, order: list[int] | None = None, **network: Any) -> RunSummary:
    config = small(**VALUES, parallel__placement=order).with_values({"lab": SECOND, "network": network})
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    return summary


def sent(summary: RunSummary, interface: str) -> float:
    """Bytes a step of all ranks."""
    assert summary.step_seconds is not None
    rates = [row.sent_bytes_per_second for row in summary.interfaces if row.interface == interface]
    return sum(rates) * summary.step_seconds.mean


def by_formula(summary: RunSummary, axis: str) -> float:
    return 4 * sum(row.wire_bytes or 0.0 for row in summary.communication if row.axis == axis)


def test_what_stays_on_an_island_goes_over_its_own_card(session: Session) -> None:
    """In order data ranks are neighbours and pipelines cross; placed the other way it is the pipelines that stay."""
    in_order, one_card, turned = run(session), run(session, inside="data"), run(session, order=[0, 2, 1, 3])
    assert in_order.losses == one_card.losses == turned.losses
    carried = [
        {row.axis: (row.network, row.inside) for row in one.networks} for one in (in_order, one_card, turned)
    ]
    assert carried == [
        {"dp": ("inside", True), "pp": ("data", False)},
        {"dp": ("data", True), "pp": ("data", False)},
        {"dp": ("data", False), "pp": ("inside", True)},
    ]
    assert {tuple(row.ranks) for one in (in_order, turned) for row in one.networks} == {(0, 1, 2, 3)}
    dp, pp = by_formula(in_order, "dp"), by_formula(in_order, "pp")
    assert dp > 2 * pp > 0
    # Counters are read before and after the measured steps, with a barrier and acknowledgements: not to the byte.
    assert sent(in_order, "inside") == pytest.approx(dp * ETHERNET, rel=0.15)
    assert sent(turned, "inside") == pytest.approx(pp * ETHERNET, rel=0.25)
    assert sent(one_card, "inside") == 0.0
    assert sent(one_card, "data") == pytest.approx((dp + pp) * ETHERNET, rel=0.15)


def test_groups_that_stages_share_layers_in_are_told_with_the_others(session: Session) -> None:
    """Four stages share layers by twos: the pipeline crosses islands, and those that share are neighbours."""
    config = small(
        parallel__pp=4, model__layers=4, model__layer_groups=2, model__hidden=64, model__ffn_hidden=128
    )
    outcome, summary = execute(session, config.with_values({"lab": SECOND}))
    assert outcome.good, outcome
    told = [(row.axis, row.network, row.inside, row.ranks) for row in summary.networks]
    everyone = [0, 1, 2, 3]
    assert told == [("pp", "data", False, everyone), ("pp", "inside", True, everyone)]
    assert sent(summary, "inside") > 0.0


def test_what_all_ranks_send_together_is_told_with_the_others(session: Session) -> None:
    """ZeRO's norm of gradients goes over the group of all ranks."""
    config = small(**VALUES | {"parallel__dp": 4, "parallel__pp": 1}, parallel__zero_stage=1)
    outcome, summary = execute(session, config.with_values({"lab": SECOND}))
    assert outcome.good, outcome
    told = {row.axis: (row.network, row.inside) for row in summary.networks}
    assert told == dict.fromkeys(("dp", "world"), ("data", False))
    assert set(told) == {row.axis for row in summary.communication}


def test_second_cards_are_counted_among_what_is_sent(session: Session) -> None:
    summary = run(session)
    rates = {row.interface: row.rate_mbit for row in summary.interfaces if row.interface != "lo"}
    assert rates == {"data": 200.0, "uplink": 100.0, "inside": 400.0}
    assert summary.wire_bytes_per_step == pytest.approx(summary.wire_bytes_measured, rel=0.01)


def test_a_second_card_is_missed_by_those_alone_that_send_over_it() -> None:
    config = small(**VALUES).with_values({"lab": SECOND})
    place = RankHosts(config.lab)
    try:
        host = place.namespaces(4)[2]
        subprocess.run(["ip", "-n", str(host), "link", "set", INSIDE, "down"], check=True)
        assert place.broken(config) == "the link of lab host 2, second card (rank 2) is down"
        assert place.broken(config.with_values({"network.inside": DATA})) is None
    finally:
        place.close()


def test_groups_over_an_interface_of_this_host(tmp_path: Any) -> None:
    """Without a lab: devices are on islands as the configuration says, and groups on an interface by its name."""
    network = {"inside": "lo", "island_devices": 2}
    with Session(tmp_path, LocalPool()) as fresh:
        plain = execute(fresh, small(**VALUES))[1]
        outcome, named = execute(fresh, small(**VALUES).with_values({"network": network}))
    assert outcome.good, outcome
    assert named.losses == plain.losses
    assert plain.networks == []
    assert {(row.axis, row.network, row.inside) for row in named.networks} == {
        ("dp", "lo", True),
        ("pp", None, False),
    }
