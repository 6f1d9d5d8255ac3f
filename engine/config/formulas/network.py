"""The shape of a lab's network: hosts in islands, the rate of each island's links and of the bridge between. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.config.errors import LayoutError, several
from engine.config.sections import Lab

#: What a namespace's name has room for: one tells the whole shape, within the 255 bytes of a file's name.
MAX_ISLANDS = 16
_MAX_HOSTS = 250
_CODE = re.compile(r"(\d+x\d+(?:\+\d+x\d+)*)(?:~(\d+)(?:i(\d+))?)?")
#: Interfaces of a lab's host that ranks send through: to every host, and to those of its own island.
DATA, INSIDE = "data", "inside"


@dataclass(frozen=True, slots=True)
class Shape:
    """Hosts by island and rates in 10^3 bits per second; a rate of 0 is as fast as this machine makes it.

    ``islands`` are the numbers of hosts and ``rates_kbit`` the rates of their links, one for each island; hosts are
    counted through from the first island to the last. ``between_kbit`` is the rate of each island's uplink, and
    ``inside_kbit`` that of each host's second card, which reaches only its island; 0 where there is none.
    """

    islands: tuple[int, ...]
    rates_kbit: tuple[int, ...]
    between_kbit: int = 0
    inside_kbit: int = 0

    @property
    def hosts(self) -> int:
        """How many there are on all islands."""
        return sum(self.islands)

    @property
    def is_shaped(self) -> bool:
        """Whether any link is held to a rate."""
        return bool(self.between_kbit or self.inside_kbit or any(self.rates_kbit))

    def island_of(self, host: int) -> int:
        """The island that a host is on."""
        return self._by_host()[host]

    def rate_kbit(self, host: int) -> int:
        """The rate of a host's link."""
        return self.rates_kbit[self.island_of(host)]

    def is_uneven(self, world_size: int) -> bool:
        """Whether some of so many ranks are nearer to each other than to others: on an island, or on a host whose link
        is held to a rate.
        """
        return len(self.islands) > 1 or (self.is_shaped and 1 < self.hosts < world_size)

    def rank_hosts(self, world_size: int) -> list[int]:
        """The host of each rank: ranks that follow each other share one."""
        return [rank * self.hosts // world_size for rank in range(world_size)]

    def hosts_of_ranks(self, devices: Sequence[int]) -> list[int]:
        """The host of each rank, by its device; devices that follow each other share one."""
        hosts = self.rank_hosts(len(devices))
        return [hosts[device] for device in devices]

    def hosts_of(self, island: int) -> list[int]:
        """The hosts of an island, in order."""
        return [host for host, island_of_host in enumerate(self._by_host()) if island_of_host == island]

    def code(self) -> str:
        """Short text that tells it, for the name of a namespace; :func:`decode` reads it."""
        groups = "+".join(
            f"{hosts}x{rate}" for hosts, rate in zip(self.islands, self.rates_kbit, strict=True)
        )
        between = f"~{self.between_kbit}" if len(self.islands) > 1 else ""
        return groups + between + (f"i{self.inside_kbit}" if self.inside_kbit else "")

    def __str__(self) -> str:
        """In words: 4 hosts in islands of 2 and 2, links of 1,000 Mbit/s, 100 Mbit/s between islands."""
        apart = len(self.islands) > 1
        islands = f" in islands of {_join_words(map(str, self.islands))}" if apart else ""
        rates = list(dict.fromkeys(self.rates_kbit))
        links = rate_words(rates[0]) if len(rates) == 1 else _join_words(map(rate_words, self.rates_kbit))
        between = f", {rate_words(self.between_kbit)} between islands" if apart else ""
        inside = f", second cards of {rate_words(self.inside_kbit)} inside of islands"
        noun = "links" if links == rate_words(0) else "links of"
        return f"{several(self.hosts, 'hosts')}{islands}, {noun} {links}{between}{inside if self.inside_kbit else ''}"

    def _by_host(self) -> list[int]:
        return [island for island, hosts in enumerate(self.islands) for _ in range(hosts)]


def shape_of(lab: Lab) -> Shape | None:
    """What a configuration asks for; None if it asks for no lab.

    Raises:
        LayoutError: its keys do not fit together.
    """
    for problem in problems(lab):
        raise problem
    if not lab.is_wanted:
        return None
    islands = _islands(lab)
    rates = lab.rates_mbit or [lab.rate_mbit] * len(islands)
    return Shape(islands, tuple(map(_kbit, rates)), _kbit(lab.between_mbit), _kbit(lab.inside_mbit))


def problems(lab: Lab) -> Iterator[LayoutError]:
    """Everything that is wrong with the lab that a configuration asks for."""
    if not lab.is_wanted:
        for name in lab.model_fields_set:
            if (value := getattr(lab, name)) is not None:
                yield LayoutError(f"lab.{name}", value, "there is no lab; set lab.hosts, or leave it out")
        return
    yield from _island_problems(lab)
    yield from _rate_problems(lab)


def decode(code: str) -> Shape | None:
    """The shape that :meth:`Shape.code` made the text of; None for any other text."""
    match = _CODE.fullmatch(code)
    if match is None:
        return None
    groups = [group.split("x") for group in match[1].split("+")]
    islands, rates = (tuple(int(group[place]) for group in groups) for place in (0, 1))
    return Shape(islands, rates, int(match[2] or 0), int(match[3] or 0))


def rate_words(kbit: int) -> str:
    """A rate in words."""
    return f"{kbit / 1000:,g} Mbit/s" if kbit else "not limited"


def _island_problems(lab: Lab) -> Iterator[LayoutError]:
    hosts, islands = lab.hosts, lab.islands
    if isinstance(islands, int) and hosts is not None and hosts % islands:
        near = [n for n in range(2, min(hosts, MAX_ISLANDS) + 1) if hosts % n == 0]
        remedy = (
            f"must divide lab.hosts={hosts}; legal: {_join_words(map(str, near), 'or')}"
            if near
            else (f"lab.hosts={hosts} cannot be split evenly")
        )
        yield LayoutError("lab.islands", islands, f"{remedy}; or list the hosts of each island")
    if isinstance(islands, list):
        total = sum(islands)
        if hosts is not None and hosts != total:
            yield LayoutError(
                "lab.islands",
                islands,
                f"these are {several(total, 'hosts')}, lab.hosts is {hosts}; set one of them",
            )
        if total > _MAX_HOSTS:
            yield LayoutError("lab.islands", islands, f"these are {total} hosts; {_MAX_HOSTS} are the most")


def _rate_problems(lab: Lab) -> Iterator[LayoutError]:
    islands = len(_islands(lab))
    if lab.rates_mbit is not None and lab.rate_mbit is not None:
        yield LayoutError(
            "lab.rates_mbit",
            lab.rates_mbit,
            "is one rate an island, lab.rate_mbit one for all; leave out one of them",
        )
    if lab.rates_mbit is not None and len(lab.rates_mbit) != islands:
        remedy = (
            f"needs one rate for each of the {islands} islands"
            if islands > 1
            else ("is one rate an island and there are none; set lab.islands, or lab.rate_mbit instead")
        )
        yield LayoutError("lab.rates_mbit", lab.rates_mbit, remedy)
    for name in ("between_mbit", "inside_mbit"):
        if (rate := getattr(lab, name)) is not None and islands == 1:
            remedy = "there is one island; set lab.islands, or leave it out"
            yield LayoutError(f"lab.{name}", rate, remedy)


def _islands(lab: Lab) -> tuple[int, ...]:
    """The hosts of each island, where they can be split so."""
    if isinstance(lab.islands, list):
        return tuple(lab.islands)
    islands = lab.islands or 1
    return ((lab.hosts or 0) // islands,) * islands


def _kbit(mbit: float | None) -> int:
    return round((mbit or 0) * 1000)


def _join_words(parts: Iterator[str] | map[str], last: str = "and") -> str:
    *head, tail = parts
    return f"{', '.join(head)} {last} {tail}" if head else tail
