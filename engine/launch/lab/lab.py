"""The lab: hosts as network namespaces of this machine, in islands with a switch each, their links held to rates.

Each host has two interfaces. ``data`` carries what ranks send each other; both of its directions are held to the rate
by ``tc tbf``. ``control`` is not shaped and carries the rendezvous. A third, ``inside``, is a second card, held to a
rate of its own, on a switch for the hosts of one island. The switches are bridges in one namespace; where
there are several islands each has an uplink, shaped as well, to a bridge in a second namespace, the core. So nothing
of a lab shows among the machine's own interfaces and several labs can stand at a time, with the same addresses. Ranks
on one host reach each other by that host's loopback, as on a real one.

The names of the namespaces are the only state: they tell the owner's pid and start time, and the shape. So whoever
comes next knows which labs have lost their owner, and removes them.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import sections
from engine.config.errors import InputError
from engine.config.formulas.network import DATA, INSIDE, Shape, decode
from engine.launch.lab import build, probe
from engine.launch.lab.links import Link, down_links
from engine.run import netns
from engine.run.netns import CONTROL

_NAME = re.compile(r"workbench-lab-(\d+)-(\d+)-(\d+)-([0-9x+~i]+)-(switch|core|\d+)")
_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class Lab:
    """Hosts that stand or will stand.

    ``pid`` and ``start_ticks`` (clock ticks after boot) are its owner; a kept lab has pid 0 and no owner. ``serial``
    tells the labs of one owner apart.
    """

    shape: Shape
    pid: int = 0
    start_ticks: int = 0
    serial: int = 0

    @property
    def is_lasting(self) -> bool:
        """Whether it stands until it is taken down."""
        return self.pid == 0

    @property
    def deserted(self) -> bool:
        """Whether it had an owner that is gone."""
        return not self.is_lasting and _start_ticks(self.pid) != self.start_ticks

    @property
    def switch(self) -> str:
        """The namespace that joins the hosts."""
        return self._name("switch")

    @property
    def core(self) -> str | None:
        """The namespace that joins the islands, if there are several."""
        return self._name("core") if len(self.shape.islands) > 1 else None

    @property
    def namespaces(self) -> list[str]:
        """Those of the hosts, in order."""
        return [self._name(str(host)) for host in range(self.shape.hosts)]

    @property
    def links(self) -> list[Link]:
        """Those that carry what ranks send: of every host to its switch, then of every island to the core, then of
        every second card.
        """
        shape = self.shape
        links = [self._card("", DATA, host, shape.rate_kbit(host)) for host in range(shape.hosts)]
        links += [self.uplink(island) for island in range(len(shape.islands)) if self.core is not None]
        second = range(shape.hosts if shape.inside_kbit else 0)
        return links + [self._card(", second card", INSIDE, host, shape.inside_kbit) for host in second]

    def uplink(self, island: int) -> Link:
        """The link of an island to the core; there has to be one."""
        near, far = (self.switch, f"up{island}"), (self._name("core"), f"down{island}")
        hosts = tuple(self.shape.hosts_of(island))
        return Link(f"island {island}", self.shape.between_kbit, near, far, hosts)

    def _card(self, words: str, interface: str, host: int, rate_kbit: int) -> Link:
        near, far = (self.namespaces[host], interface), (self.switch, f"{interface}{host}")
        return Link(f"host {host}{words}", rate_kbit, near, far, (host,))

    @property
    def complete(self) -> bool:
        """Whether every namespace is there and every link is up."""
        wanted = {self.switch, *self.namespaces} | ({self.core} if self.core else set())
        return (
            self._present() >= wanted
            and not down_links(self.links)
            and all(map(_has_control, self.namespaces))
        )

    def set_up(self) -> None:
        """Set it up, and measure that every link that has a rate carries it.

        Raises:
            LabError: a command failed, with what it said, or a link does not carry its rate; nothing is left behind.
        """
        try:
            build.add(self.switch, self.core, self.namespaces, self.shape)
            build.shape(self.links)
            build.note(probe.measure(self.links))
            build.join(self.switch, self.core, self.shape)
        except BaseException:
            self.tear_down()
            raise

    def tear_down(self) -> None:
        """Remove it, whatever of it is there; does nothing if it is gone."""
        build.remove(sorted(self._present()))

    def _present(self) -> set[str]:
        return {path.name for path in netns.FOLDER.glob(self._name("*"))}

    def _name(self, member: str) -> str:
        return f"workbench-lab-{self.pid}-{self.start_ticks}-{self.serial}-{self.shape.code()}-{member}"


def make_process_lab(shape: Shape) -> Lab:
    """A new lab of this process, not yet set up."""
    pid = os.getpid()
    return replace(make_lasting_lab(shape), pid=pid, start_ticks=_start_ticks(pid), serial=next(_serials))


def make_lasting_lab(shape: Shape) -> Lab:
    """The lab of that shape that stands across runs, if it does."""
    return Lab(shape)


def from_namespace(namespace: str) -> Lab | None:
    """The lab that a namespace belongs to, by its name."""
    match = _NAME.fullmatch(namespace)
    shape = None if match is None else decode(match[4])
    if match is None or shape is None:
        return None
    pid, started, serial = (int(text) for text in match.groups()[:3])
    return Lab(shape, pid, started, serial)


def require(wanted: sections.Lab) -> None:
    """Nothing where the lab that a configuration asks for can be set up, or it asks for none.

    Raises:
        InputError: it cannot be, with the reason and what to do.
    """
    if wanted.is_wanted:
        name = "islands" if wanted.hosts is None else "hosts"
        require_means(f"lab.{name}", getattr(wanted, name))


def require_means(field: str, value: object) -> None:
    """The same for any lab; ``field`` and ``value`` are what asks for it.

    Raises:
        InputError: it cannot be set up, with the reason and what to do.
    """
    if reason := netns.unavailability():
        raise InputError(field, value, f"the lab needs network namespaces, but {reason}; or leave it out")


def switch_address() -> str:
    """The switch's end of the control network, where the rendezvous listens."""
    return build.SWITCH_ADDRESS


def _has_control(name: str) -> bool:
    try:
        rows = netns.run_inside(name, lambda: Path("/proc/thread-self/net/dev").read_text(encoding="ascii"))
    except OSError:
        return False
    return f"{CONTROL}:" in rows


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks after boot; 0 if it is not running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *fields = text.rpartition(")")[2].split()
    return 0 if state == "Z" else int(fields[18])
