"""Labs of several islands: links measured when they are set up, rates inside and between kept, uplinks counted."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.comm.channel import Channel
from engine.config.formulas.network import Shape
from engine.config.sections import Lab
from engine.launch.lab import build, lab, registry
from engine.launch.lab.build import LabError, read_rates
from engine.launch.lab.links import Link, down_links
from engine.launch.pool import RankHosts
from engine.run import netns
from engine.session import Session
from profilers.model.run_summary import RunSummary
from tests.support.engine.lab import needs_lab, on_the_wire
from tests.support.engine.shapes import even_shape
from tests.support.ranks import on_ranks_of
from tests.support.runs import execute, small

#: Fast inside, slow between; the second island has older network cards.
RATES = {"islands": [2, 2], "rates_mbit": [80.0, 40.0], "between_mbit": 10.0}
TWO = Shape((2, 2), (80_000, 40_000), 10_000)
PAYLOAD = 1448 / 1514


@pytest.fixture
def made() -> Iterator[lab.Lab]:
    """A lab of two islands."""
    one = lab.make_process_lab(TWO)
    one.set_up()
    yield one
    one.tear_down()
    assert one not in registry.list_labs()


@needs_lab
def test_every_link_is_measured_within_five_percent(made: lab.Lab) -> None:
    assert made.complete
    measured = read_rates(made.links)
    assert [link.name for link in measured] == [
        "host 0",
        "host 1",
        "host 2",
        "host 3",
        "island 0",
        "island 1",
    ]
    for link, rates in measured.items():
        assert rates == pytest.approx((link.rate_kbit / 1000,) * 2, rel=0.05)


@needs_lab
def test_links_that_are_not_limited_are_not_measured() -> None:
    one = lab.make_process_lab(Shape((1, 1), (0, 0), 20_000))
    one.set_up()
    try:
        assert [link.name for link in read_rates(one.links)] == ["island 0", "island 1"]
    finally:
        one.tear_down()


@needs_lab
def test_second_cards_carry_their_rate_and_reach_their_island_alone() -> None:
    one = lab.make_process_lab(Shape((2, 1), (80_000, 40_000), 20_000, 120_000))
    one.set_up()
    try:
        assert one.complete
        cards = {link.name: rates for link, rates in read_rates(one.links).items() if "second" in link.name}
        assert list(cards) == [f"host {host}, second card" for host in range(3)]
        for rates in cards.values():
            assert rates == pytest.approx((120.0, 120.0), rel=0.05)
        assert [reaches(one, target) for target in ("10.202.0.2", "10.202.0.3", "10.200.0.3")] == [
            True,
            False,
            True,
        ]
    finally:
        one.tear_down()


def reaches(one: lab.Lab, address: str) -> bool:
    """Whether the first host can call whoever has an address."""
    host = int(address.rpartition(".")[2]) - 1
    with netns.run_inside(one.namespaces[host], lambda: socket.create_server((address, 0))) as server:
        port = server.getsockname()[1]
        try:
            netns.run_inside(
                one.namespaces[0], partial(socket.create_connection, (address, port), 2.0)
            ).close()
        except OSError:
            return False
    return True


@pytest.mark.drawn(1, of="links that go down")
@needs_lab
@pytest.mark.parametrize("name", ["host 1", "island 1"])
def test_a_link_that_does_not_carry_its_rate_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Planted: one link is held to four fifths of what was asked."""
    shape = build.shape

    def less(links: Sequence[Link]) -> None:
        shape(
            [
                replace(link, rate_kbit=link.rate_kbit * 4 // 5) if link.name == name else link
                for link in links
            ]
        )

    monkeypatch.setattr(build, "shape", less)
    one = lab.make_process_lab(TWO)
    with pytest.raises(LabError) as refused:
        one.set_up()
    asked = next(link.rate_kbit for link in one.links if link.name == name) / 1000
    assert f"{name} was asked to carry {asked:g} Mbit/s, and carries {asked * 0.8:.0f}"[:-2] in str(
        refused.value
    )
    assert "\n" not in str(refused.value)
    assert one not in registry.list_labs()


@needs_lab
def test_hosts_use_the_tcp_of_the_lab_whatever_the_machine_does_by_default(made: lab.Lab) -> None:
    """Both ends of a connection between two hosts, also of different islands."""
    first = made.namespaces[0]
    for host in (1, 3):
        with netns.run_inside(made.namespaces[host], lambda: socket.create_server(("", 0))) as server:
            address = (f"10.200.0.{host + 1}", server.getsockname()[1])
            with netns.run_inside(first, partial(socket.create_connection, address, 10)) as caller:
                called = server.accept()[0]
                for end in (caller, called):
                    name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                    assert name.rstrip(b"\0").decode() == build.CONGESTION_CONTROL
                called.close()


@needs_lab
def test_a_link_that_is_down_is_seen_from_either_end(made: lab.Lab) -> None:
    for link in (made.links[1], made.links[5]):
        for namespace, interface in (link.near, link.far):
            turn(namespace, interface, "down")
            assert down_links(made.links) == [link]
            assert not made.complete
            turn(namespace, interface, "up")
            until(lambda: made.complete)


def turn(namespace: str, interface: str, way: str) -> None:
    """Set a link up or down."""
    subprocess.run(["ip", "-n", namespace, "link", "set", interface, way], check=True)


def until(done: object, seconds: float = 60.0) -> None:
    """Wait for something to be so; the kernel tells of carriers a moment later."""
    assert callable(done)
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def reached(rank: int, elements: dict[int, int]) -> dict[int, float]:
    """10^6 bits of payload per second from rank 0 to each other one, the better of two rounds."""
    own = Channel(dist.group.WORLD, torch.device("cpu"))
    note, found = torch.ones(1), {}
    for other, size in elements.items():
        rates = []
        for _ in range(2):
            own.all_reduce(note)
            begin = time.perf_counter()
            if rank == 0:
                own.send(torch.ones(size), other).wait()
                own.receive(note, other).wait()
            elif rank == other:
                own.receive(torch.empty(size), 0).wait()
                own.send(note, 0).wait()
            rates.append(size * 32e-6 / (time.perf_counter() - begin))
        found[other] = max(rates)
    return found


@needs_lab
@pytest.mark.slow
def test_rates_inside_and_between_are_kept() -> None:
    """From the first host to its neighbour and to each host of the other island, 0.3 s each at the rate asked for."""
    rates = {1: 80.0, 2: 10.0, 3: 10.0}
    place = RankHosts(Lab.model_validate(RATES))
    try:
        found = on_ranks_of(
            place, 4, reached, {rank: int(rate * 1e6 / 32 * 0.3) for rank, rate in rates.items()}
        )
    finally:
        place.close()
    assert found[0] == pytest.approx({rank: rate * PAYLOAD for rank, rate in rates.items()}, rel=0.10)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Runs in one lab of two islands, which the first of them sets up."""
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm
    assert not [one for one in registry.list_labs() if one.pid == os.getpid()]


SMALL: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 64,
    "model__ffn_hidden": 128,
    "train__warmup": 1,
}


@pytest.fixture(scope="module")
def summary(session: Session) -> RunSummary:
    """A run of four ranks, one a host."""
    config = small(parallel__dp=4, train__steps=4, **SMALL).with_values({"lab": RATES})
    outcome, found = execute(session, config)
    assert outcome.good, outcome
    return found


@needs_lab
def test_links_are_counted_with_their_rates_and_how_much_of_them_is_used(summary: RunSummary) -> None:
    rows = {(row.interface, *row.ranks): row for row in summary.interfaces}
    rates = {("data", 0): 80.0, ("data", 1): 80.0, ("data", 2): 40.0, ("data", 3): 40.0}
    rates |= {("uplink", 0, 1): 10.0, ("uplink", 2, 3): 10.0}
    assert {key: row.rate_mbit for key, row in rows.items() if row.interface != "lo"} == rates
    for key, rate in rates.items():
        row = rows[key]
        assert row.sent_utilization == pytest.approx(row.sent_bytes_per_second * 8e-6 / rate)
        assert 0.0 < row.sent_utilization < 1.1
    first, second = rows["uplink", 0, 1], rows["uplink", 2, 3]
    assert first.sent_bytes_per_second == pytest.approx(second.received_bytes_per_second, rel=0.1)
    assert (
        max(first.sent_utilization or 0.0, second.sent_utilization or 0.0) > 0.4
    )  # all waits for the bridge


@needs_lab
def test_what_goes_between_islands_is_counted_once(summary: RunSummary) -> None:
    calls = sum(row.calls for row in summary.communication)
    assert summary.wire_bytes_per_step == on_the_wire(summary.wire_bytes_measured, calls)


@needs_lab
def test_runs_of_a_session_share_one_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up, built = lab.Lab.set_up, []

    def counted(one: lab.Lab) -> None:
        built.append(one)
        up(one)

    monkeypatch.setattr(lab.Lab, "set_up", counted)
    with Session(tmp_path) as fresh:
        for seed in range(2):
            config = small(parallel__dp=2, train__seed=seed, **SMALL)
            outcome, _ = execute(fresh, config.with_values({"lab.hosts": 2, "lab.rate_mbit": 100.0}))
            assert outcome.good
    assert [one.shape for one in built] == [even_shape(2, 100.0)]
