"""The commands that set a lab up and take it down; each batch of ``ip`` or ``tc`` ends at the first that fails."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

from engine.config.errors import WorkbenchError
from engine.config.formulas.network import DATA, INSIDE, Shape
from engine.launch.lab.links import Link, Rates
from engine.run.netns import CONTROL

SWITCH_ADDRESS = "10.201.0.254"
_MIN_BURST_BYTES = 16_384
#: Room for everything that a receiver's windows let be under way: a full queue must not drop and send again.
_QUEUE_BYTES = 1 << 26
#: A lab is the same on every machine, whatever its TCP does by default. This one fills a queue that never drops, and
#: flows that share a port finish together; BBR's, which pace themselves by what they measured, do not.
CONGESTION_CONTROL = "reno"
#: The third number of the addresses on each network; a host has the same last number on all.
_NETWORKS = {DATA: 200, CONTROL: 201, INSIDE: 202}
_QUIET = "addrgenmode none"  # no IPv6, whose announcements would be counted


class LabError(WorkbenchError):
    """The lab could not be set up."""


def add(switch: str, core: str | None, hosts: Sequence[str], shape: Shape) -> None:
    """Namespaces and their links, which carry to the switch and to the core, but not yet from one to the other.

    Raises:
        LabError: a command failed, with what it said.
    """
    cores = [core] if core is not None else []
    _run(["ip"], [f"netns add {name}" for name in (switch, *cores, *hosts)])
    commands = ["link set lo up", *_bridge(CONTROL), f"addr add {SWITCH_ADDRESS}/24 dev {CONTROL}"]
    for host, name in enumerate(hosts):
        for network in _networks(shape):
            commands += _pair(f"{network}{host}", network, name)
            if network != CONTROL:
                prefix = f"10.{_NETWORKS[network]}.0"
                commands.append(f"addr add {prefix}.254 peer {prefix}.{host + 1} dev {network}{host}")
        commands.append(f"link set {CONTROL}{host} master {CONTROL}")
    for island in range(len(shape.islands) if cores else 0):
        commands += _pair(f"up{island}", f"down{island}", cores[0])
        commands.append(f"addr add 10.200.1.{island + 1} peer 10.200.2.{island + 1} dev up{island}")
    _run(["ip", "-n", switch], commands)
    for host, name in enumerate(hosts):
        _run(["ip", "-n", name], _host_commands(host, _networks(shape)))
    for name in cores:
        _run(["ip", "-n", name], _core_commands(len(shape.islands)))


def shape(links: Sequence[Link]) -> None:
    """Hold both directions of each link to its rate, whether or not it is held to another one.

    Raises:
        LabError: a command failed, with what it said.
    """
    for namespace, interface, rate in (
        (*end, link.rate_kbit) for link in links for end in (link.near, link.far)
    ):
        if rate:
            burst = max(_MIN_BURST_BYTES, rate // 8)  # a millisecond of the rate, in bytes
            limit = max(_QUEUE_BYTES, 2 * burst)
            # What is longer is cut into packets of 1,500 bytes, at the price of a core.
            _run(["ip", "-n", namespace], [f"link set {interface} gso_max_size {burst * 7 // 8}"])
            _run(
                ["tc", "-n", namespace],
                [f"qdisc replace dev {interface} root tbf rate {rate}kbit burst {burst} limit {limit}"],
            )


def join(switch: str, core: str | None, shape: Shape) -> None:
    """Make each island's links one network, and the islands' uplinks.

    Raises:
        LabError: a command failed, with what it said.
    """
    commands = []
    for island in range(len(shape.islands)):
        ports = [f"{DATA}{host}" for host in shape.hosts_of(island)] + ([f"up{island}"] if core else [])
        commands += _bridge(f"island{island}") + _port_commands(ports, f"island{island}")
        if shape.inside_kbit:
            cards = [f"{INSIDE}{host}" for host in shape.hosts_of(island)]
            commands += _bridge(f"near{island}") + _port_commands(cards, f"near{island}")
    _run(["ip", "-n", switch], commands)
    if core is not None:
        ports = [f"down{island}" for island in range(len(shape.islands))]
        _run(["ip", "-n", core], _bridge("core") + _port_commands(ports, "core"))


def note(measured: Mapping[Link, Rates]) -> None:
    """Keep what links were measured to carry where the links are.

    Raises:
        LabError: a command failed, with what it said.
    """
    for link, rates in measured.items():
        namespace, interface = link.far
        _run(
            ["ip", "-n", namespace],
            [f"link set {interface} alias {rates.sent_mbit:.2f}/{rates.received_mbit:.2f}"],
        )


def read_rates(links: Sequence[Link]) -> dict[Link, Rates]:
    """What was kept of each link; nothing of links that are not there or have no rate."""
    aliases = {
        (namespace, row["ifname"]): row["ifalias"]
        for namespace in {link.far[0] for link in links}
        for row in _interfaces(namespace)
        if "ifalias" in row
    }
    return {link: Rates(*map(float, aliases[link.far].split("/"))) for link in links if link.far in aliases}


def remove(namespaces: Sequence[str]) -> None:
    """Those that are there are removed, with their links."""
    if namespaces:
        _run(["ip", "-force"], [f"netns del {name}" for name in namespaces], check=False)


def _pair(own_end: str, other_end: str, namespace: str) -> list[str]:
    return [
        f"link add {own_end} type veth peer name {other_end} netns {namespace}",
        f"link set {own_end} {_QUIET}",
        f"link set {own_end} up",
    ]


def _bridge(name: str) -> list[str]:
    return [f"link add {name} type bridge", f"link set {name} {_QUIET}", f"link set {name} up"]


def _port_commands(ports: Sequence[str], bridge: str) -> list[str]:
    return [
        command
        for port in ports
        for command in (f"addr flush dev {port}", f"link set {port} master {bridge}")
    ]


def _networks(shape: Shape) -> list[str]:
    return [DATA, CONTROL, INSIDE] if shape.inside_kbit else [DATA, CONTROL]


def _host_commands(host: int, networks: Sequence[str]) -> list[str]:
    commands = ["link set lo up"]
    for network in networks:
        prefix = f"10.{_NETWORKS[network]}.0"
        commands.append(f"link set {network} {_QUIET}")
        commands += [f"addr add {prefix}.{host + 1}/24 dev {network}", f"link set {network} up"]
        if network != CONTROL:
            route = f"{prefix}.0/24 dev {network} proto kernel scope link src {prefix}.{host + 1}"
            commands.append(f"route replace {route} congctl {CONGESTION_CONTROL}")
    return commands


def _core_commands(islands: int) -> list[str]:
    commands = ["link set lo up"]
    for island in range(islands):
        commands += [f"link set down{island} {_QUIET}", f"link set down{island} up"]
        commands.append(f"addr add 10.200.2.{island + 1} peer 10.200.1.{island + 1} dev down{island}")
    return commands


def _interfaces(namespace: str) -> list[dict[str, str]]:
    process = subprocess.run(
        ["ip", "-n", namespace, "-json", "link", "show"], capture_output=True, text=True, check=False
    )
    rows: list[dict[str, str]] = json.loads(process.stdout or "[]") if not process.returncode else []
    return rows


def _run(command: list[str], lines: list[str], check: bool = True) -> None:
    text = "\n".join(lines) + "\n"
    process = subprocess.run(
        [*command, "-batch", "-"], input=text, capture_output=True, text=True, check=False
    )
    if check and process.returncode:
        reason = " ".join(process.stderr.split()) or f"exit code {process.returncode}"
        raise LabError(f"the lab could not be set up: {' '.join(command)}: {reason}")
