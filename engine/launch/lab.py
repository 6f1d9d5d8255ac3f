"""The lab: hosts as network namespaces of this machine, joined by one switch, their links all of one rate.

Each host has two interfaces. ``data`` carries what ranks send each other; both of its directions are held to the rate
by ``tc tbf``. ``control`` is not shaped and carries the rendezvous. The switch is a namespace, too, so nothing of a
lab shows among the machine's own interfaces and several labs can stand at a time, with the same addresses. Ranks on
one host reach each other by that host's loopback, as on a real one.

The names of the namespaces are the only state: they tell the owner's pid and start time, the number of hosts and the
rate. So whoever comes next knows which labs have lost their owner, and removes them.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from engine import netns
from engine.errors import InputError, WorkbenchError
from engine.netns import CONTROL, DATA

_NAME = re.compile(r"workbench-lab-(\d+)-(\d+)-(\d+)-(\d+)x(\d+)-(switch|\d+)")
_MIN_BURST_BYTES = 16_384
#: Room for everything that a receiver's windows let be under way: a full queue must not drop and send again.
_QUEUE_BYTES = 1 << 26
_serials = itertools.count()


class LabError(WorkbenchError):
    """The lab could not be set up."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts that stand or will stand; without a rate their links are as fast as this machine makes them.

    ``pid`` and ``started`` (clock ticks after boot) are its owner; a kept lab has pid 0 and no owner. ``serial`` tells
    the labs of one owner apart.
    """

    hosts: int
    rate_kbit: int = 0
    pid: int = 0
    started: int = 0
    serial: int = 0

    @property
    def rate_mbit(self) -> float | None:
        """The rate of a link in each direction, in 10^6 bits per second; None if it is not shaped."""
        return self.rate_kbit / 1000 if self.rate_kbit else None

    @property
    def kept(self) -> bool:
        """Whether it stands until it is taken down."""
        return self.pid == 0

    @property
    def deserted(self) -> bool:
        """Whether it had an owner that is gone."""
        return not self.kept and _started(self.pid) != self.started

    @property
    def switch(self) -> str:
        """The namespace that joins the hosts."""
        return self._name("switch")

    @property
    def namespaces(self) -> list[str]:
        """Those of the hosts, in order."""
        return [self._name(str(host)) for host in range(self.hosts)]

    @property
    def complete(self) -> bool:
        """Whether every namespace is there and every host's links are up."""
        names = {path.name for path in netns.FOLDER.glob(self._name("*"))}
        return names >= {self.switch, *self.namespaces} and all(map(_is_linked, self.namespaces))

    def up(self) -> None:
        """Set it up.

        Raises:
            LabError: a command failed, with what it said; nothing is left behind.
        """
        try:
            _run(["ip"], [f"netns add {name}" for name in (self.switch, *self.namespaces)])
            _run(["ip", "-n", self.switch], self._switch_commands())
            for host, name in enumerate(self.namespaces):
                _run(["ip", "-n", name], _host_commands(host))
            if self.rate_kbit:
                self._shape()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Remove it, whatever of it is there; does nothing if it is gone."""
        names = sorted(path.name for path in netns.FOLDER.glob(self._name("*")))
        if names:
            _run(["ip", "-force"], [f"netns del {name}" for name in names], check=False)

    def _name(self, member: str) -> str:
        return f"workbench-lab-{self.pid}-{self.started}-{self.serial}-{self.hosts}x{self.rate_kbit}-{member}"

    def _switch_commands(self) -> list[str]:
        commands = ["link set lo up"]
        for network in (DATA, CONTROL):
            commands.append(f"link add {network} type bridge")
            for host, name in enumerate(self.namespaces):
                commands.append(f"link add {network}{host} type veth peer name {network} netns {name}")
                commands += [f"link set {network}{host} addrgenmode none", f"link set {network}{host} up"]
                commands.append(f"link set {network}{host} master {network}")
            commands += [f"link set {network} addrgenmode none", f"link set {network} up"]
        return [*commands, f"addr add {switch_address()}/24 dev {CONTROL}"]

    def _shape(self) -> None:
        burst = max(_MIN_BURST_BYTES, self.rate_kbit // 8)  # a millisecond of the rate, in bytes
        shape = f"root tbf rate {self.rate_kbit}kbit burst {burst} limit {max(_QUEUE_BYTES, 2 * burst)}"
        _run(
            ["tc", "-n", self.switch],
            [f"qdisc add dev {DATA}{host} {shape}" for host in range(self.hosts)],
        )
        for name in self.namespaces:
            _run(["tc", "-n", name], [f"qdisc add dev {DATA} {shape}"])


def owned(hosts: int, rate_mbit: float | None) -> Lab:
    """A new lab of this process, not yet set up."""
    pid = os.getpid()
    return replace(kept(hosts, rate_mbit), pid=pid, started=_started(pid), serial=next(_serials))


def kept(hosts: int, rate_mbit: float | None) -> Lab:
    """The lab of that shape that stands across runs, if it does."""
    return Lab(hosts, round((rate_mbit or 0) * 1000))


def named(namespace: str) -> Lab | None:
    """The lab that a namespace belongs to, by its name."""
    match = _NAME.fullmatch(namespace)
    if match is None:
        return None
    pid, started, serial, hosts, rate = (int(text) for text in match.groups()[:5])
    return Lab(hosts, rate, pid, started, serial)


def require(field: str, value: object) -> None:
    """Nothing where a lab can be set up.

    Raises:
        InputError: it cannot be, with the reason and what to do.
    """
    if reason := netns.unavailable():
        raise InputError(field, value, f"the lab needs network namespaces, but {reason}; or leave it out")


def host_of(rank: int, world_size: int, hosts: int) -> int:
    """The host of a rank: ranks that follow each other share one."""
    return rank // (world_size // hosts)


def switch_address() -> str:
    """The switch's end of the control network, where the rendezvous listens."""
    return "10.201.0.254"


def _host_commands(host: int) -> list[str]:
    commands = ["link set lo up"]
    for network, third in ((DATA, 200), (CONTROL, 201)):
        commands.append(f"link set {network} addrgenmode none")
        commands += [f"addr add 10.{third}.0.{host + 1}/24 dev {network}", f"link set {network} up"]
    return commands


def _run(command: list[str], lines: list[str], check: bool = True) -> None:
    """Feed lines to one batch of ``ip`` or ``tc``, which ends at the first that fails."""
    text = "\n".join(lines) + "\n"
    done = subprocess.run([*command, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"the lab could not be set up: {' '.join(command)}: {said}")


def _is_linked(name: str) -> bool:
    try:
        rows = netns.inside(name, lambda: Path("/proc/thread-self/net/dev").read_text(encoding="ascii"))
    except OSError:
        return False
    return all(f"{network}:" in rows for network in (DATA, CONTROL))


def _started(pid: int) -> int:
    """When a process started, in clock ticks after boot; 0 if it is not running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *rest = text.rpartition(")")[2].split()
    return 0 if state == "Z" else int(rest[18])
