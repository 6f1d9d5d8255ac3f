"""Networks of groups: which one by where members are, gloo's variable while a group is made, NCCL's options."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from engine.comm.transport import GroupNetwork, Transport, group_options, transport_of
from engine.config.errors import InputError, LayoutError
from engine.config.layout import islands_of
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import check
from engine.run.devices import interfaces
from engine.run.devices.selection import Devices
from profilers.model.rows import NetworkRow
from workbench.text import step

SECOND = {"islands": [2, 2], "rate_mbit": 100.0, "inside_mbit": 400.0}


def of_four(**sections: Any) -> RunConfig:
    parallel = {"dp": 2, "pp": 2} | sections.pop("parallel", {})
    return parse({"parallel": parallel, "batch": {"global_batch": 4, "micro_batch": 1}} | sections)


@pytest.mark.parametrize(
    ("sections", "islands"),
    [
        ({}, None),
        ({"lab": SECOND}, [0, 0, 1, 1]),
        ({"lab": SECOND, "parallel": {"placement": [0, 2, 3, 1]}}, [0, 1, 1, 0]),
        ({"network": {"inside": "eth1", "island_devices": 2}}, [0, 0, 1, 1]),
        ({"network": {"inside": "eth1", "island_devices": [1, 3]}}, [0, 1, 1, 1]),
        ({"network": {"inside": "eth1", "island_devices": [1, 2, 1]},
          "parallel": {"placement": [3, 0, 1, 2]}}, [2, 0, 1, 1]),
    ],
)  # fmt: skip
def test_islands_are_the_labs_or_counted_by_devices(
    sections: dict[str, Any], islands: list[int] | None
) -> None:
    assert islands_of(of_four(**sections)) == islands


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, (None, None)),
        ({"lab": {"islands": [2, 2]}}, (None, None)),
        ({"lab": SECOND}, ("inside", "data")),
        ({"lab": SECOND, "network": {"inside": "data"}}, ("data", "data")),
        ({"network": {"inside": "IB", "between": "Socket", "island_devices": 2}}, ("IB", "Socket")),
    ],
)
def test_names_are_those_asked_for_or_the_labs_second_cards(
    sections: dict[str, Any], names: tuple[str | None, str | None]
) -> None:
    found = transport_of(of_four(**sections))
    assert (found.inside, found.between) == names


def made_over(monkeypatch: pytest.MonkeyPatch, transport: Transport, *groups: list[int]) -> list[str | None]:
    """What the variable says as torch makes each group; afterwards it is as before."""
    seen: list[str | None] = []

    def make(members: list[int], **_: Any) -> object:
        seen.append(os.environ.get("GLOO_SOCKET_IFNAME"))
        return object()

    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(dist, "new_group", make)
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    for members in groups:
        transport.group("dp", members, patience())
        assert os.environ.get("GLOO_SOCKET_IFNAME") == before
    return seen


def patience() -> Any:
    return SimpleNamespace()


@pytest.mark.parametrize("before", [None, "data"])
def test_a_group_of_one_island_has_the_inner_network_and_every_other_the_outer(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if before is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", before)
    one = Transport("near", "far", (0, 1, 1, 0))
    assert made_over(monkeypatch, one, [1, 2], [0, 1], [0, 3], [0, 1, 2, 3]) == ["near", "far", "near", "far"]
    told = [GroupNetwork(**row) for row in one.record_fields()]
    assert told == [GroupNetwork("dp", name, name == "near") for name in ("near", "far", "near", "far")]


def test_nothing_is_chosen_or_told_where_nothing_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    for plain in (Transport(), Transport(islands=(0, 0, 1, 1)), Transport("near", None, None)):
        assert made_over(monkeypatch, plain, [0, 1]) == ["eth7"]
    assert Transport(islands=(0, 0)).record_fields() == []


def test_where_nobody_told_islands_a_group_is_said_to_be_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Transport(between="far")
    assert made_over(monkeypatch, one, [0, 1]) == ["far"]
    assert one.record_fields() == [{"axis": "dp", "network": "far", "inside": None}]
    assert step.networks([NetworkRow("dp", "far", None, [0, 1])]) == "dp over far (ranks 0, 1)"


def test_nccl_gets_the_network_by_name_in_options_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def options() -> SimpleNamespace:
        return SimpleNamespace(config=SimpleNamespace(net_name=None))

    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=options), raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with group_options("IB", "nccl") as given, group_options("Socket", "nccl") as other:
        assert (given.config.net_name, other.config.net_name) == ("IB", "Socket")
        assert "GLOO_SOCKET_IFNAME" not in os.environ
    with group_options(None, "nccl") as given:
        assert given is None


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"network": {"inside": "eth1"}}, r"network\.inside='eth1': nobody told .* set network\.island_devices"),
        ({"network": {"island_devices": 2}}, r"network\.island_devices=2: .* set network\.inside"),
        ({"network": {"inside": "a", "island_devices": 3}}, r"must divide the 4 ranks; legal: 1, 2, 4, or a list"),
        ({"network": {"inside": "a", "island_devices": [1, 2]}}, "these are 3 devices, and this layout has 4 ranks"),
        ({"lab": SECOND, "network": {"island_devices": 2}}, "the lab has islands of its own; leave it out"),
        ({"lab": SECOND, "network": {"inside": "eth0"}}, "reach each other there over data or inside$"),
        ({"lab": {"islands": [2, 2]}, "network": {"inside": "inside"}}, r"over data; lab\.inside_mbit gives them"),
        ({"lab": SECOND, "network": {"between": "inside"}}, "reach each other there over data$"),
        ({"lab": {"hosts": 2, "inside_mbit": 50.0}}, r"lab\.inside_mbit=50\.0: there is one island"),
        ({"lab": {"inside_mbit": 50.0}}, r"lab\.inside_mbit=50\.0: there is no lab"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_line(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(LayoutError, match=words) as refused:
        check(of_four(**sections))
    assert "\n" not in str(refused.value)


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    cpus, gpus = Devices("cpu", "gloo", ""), Devices("cuda", "nccl", "")
    wrong = of_four(network={"inside": "lo,no-such-card", "island_devices": 2})
    with pytest.raises(InputError, match=r"network\.inside='lo,no-such-card': .* no such .* it has .*lo"):
        interfaces.require(wrong, cpus)
    interfaces.require(wrong, gpus)
    interfaces.require(of_four(network={"inside": "lo", "between": "lo", "island_devices": 2}), cpus)
    interfaces.require(of_four(lab=SECOND, network={"inside": "data"}), cpus)


@pytest.mark.parametrize("names", ["lo, lo", "lo,"])
def test_names_are_joined_as_gloo_takes_them_apart(names: str) -> None:
    with pytest.raises(InputError, match=r"has no such interface; .*names are joined by commas alone"):
        interfaces.require(
            of_four(network={"inside": names, "island_devices": 2}), Devices("cpu", "gloo", "")
        )


def test_an_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo would end the run with a line of its own source."""
    there = psutil.net_if_addrs() | {"cable": [SimpleNamespace(family=socket.AF_PACKET, address="00:11")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    wrong = of_four(network={"inside": "lo,cable", "island_devices": 2})
    with pytest.raises(InputError, match=r"network\.inside='lo,cable': cable of .* has no address .*lo"):
        interfaces.require(wrong, Devices("cpu", "gloo", ""))
