"""What joins each two hosts, measured from one to the other, and what an island's hosts reach together. No torch.

Ranks of a host share what it reaches. Hosts whose links carry at least half of the best that either of them has are on
one island: that follows from the rates alone, whatever a configuration says.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.config.errors import InputError
from engine.run import run_folder

FOLDER = "links"
FORMAT = 1
#: Of the best rate of either end, for two hosts to be on one island.
NEAR = 0.5


class HostLinks(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Of ``hosts``: [from][to] seconds before a message's first byte and bytes/s, of one message at a time; 0 on the
    diagonal. ``island_bytes_per_second``: what an island's hosts reached together, all sending out of it; None where
    there is one island, or one host on it.
    """

    key: str
    hosts: tuple[str, ...]
    alpha_seconds: tuple[tuple[float, ...], ...]
    bytes_per_second: tuple[tuple[float, ...], ...]
    island_bytes_per_second: tuple[float | None, ...]
    backend: str
    measured_unix: float
    seconds: float
    format: int = FORMAT

    @property
    def islands(self) -> tuple[int, ...]:
        """The island of each host."""
        return islands_of(self.bytes_per_second)

    @property
    def count(self) -> int:
        """Islands in all."""
        return max(self.islands, default=0) + 1

    @property
    def slowest(self) -> float:
        """Bytes/s of the slowest link of two hosts."""
        rates = enumerate(self.bytes_per_second)
        return min(
            (rate for source, row in rates for to, rate in enumerate(row) if to != source), default=math.inf
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the islands among them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"islands": list(self.islands)}

    def words(self) -> str:
        """When, of what: 4 hosts on 2 islands, measured 28 Nov 2026."""
        day = time.strftime("%d %b %Y, %H:%M", time.localtime(self.measured_unix))
        islands = "" if self.count == 1 else f" on {self.count:,} islands"
        return f"{len(self.hosts):,} hosts{islands}, measured {day}"


def islands_of(rates: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The island of each host, counted in the order of their first hosts, from bytes/s [from][to]."""
    count = len(rates)
    both = [
        [min(rates[source][target], rates[target][source]) for target in range(count)]
        for source in range(count)
    ]
    best = [
        max((rate for place, rate in enumerate(row) if place != source), default=0.0)
        for source, row in enumerate(both)
    ]
    island: list[int | None] = [None] * count
    islands = 0
    for first in range(count):
        if island[first] is not None:
            continue
        island[first], waiting = islands, [first]
        while waiting:
            host = waiting.pop()
            for other in range(count):
                near = both[host][other] >= NEAR * max(best[host], best[other])
                if other != host and island[other] is None and near:
                    island[other] = islands
                    waiting.append(other)
        islands += 1
    return tuple(place or 0 for place in island)


def key_of(hosts: Sequence[str]) -> str:
    """Of hosts by their names, in any order."""
    return "hosts-" + hashlib.sha256("\n".join(sorted(hosts)).encode()).hexdigest()[:12]


def save(home: Path, links: HostLinks) -> Path:
    """In the place of what was measured before of the same hosts.

    Raises:
        InputError: the home folder cannot be written.
    """
    path = home / FOLDER / f"{links.key}.json"
    with run_folder.check_writable(home):
        path.parent.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(path, links.as_dict())
    return path


def stored_links(home: Path) -> dict[str, HostLinks]:
    """All that were measured under a home, by their keys; without what cannot be read."""
    stored = {}
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            links = _read(path)
        except (OSError, ValueError):
            continue
        stored[links.key] = links
    return stored


def read_links(path: Path) -> HostLinks:
    """What ``python -m engine.launch.measure.pairs`` wrote.

    Raises:
        InputError: there is no such file, or it does not hold links of this format.
    """
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        remedy = f"cannot be read ({error}): write it with `torchrun ... -m engine.launch.measure.pairs --out {path}`"
        raise InputError("links", str(path), remedy) from None


def _read(path: Path) -> HostLinks:
    links = msgspec.json.decode(path.read_bytes(), type=HostLinks)
    count = len(links.hosts)
    if links.format != FORMAT:
        raise ValueError(f"format {links.format} is not {FORMAT}")
    tables = (links.alpha_seconds, links.bytes_per_second)
    if not count or any(len(table) != count or any(len(row) != count for row in table) for table in tables):
        raise ValueError(f"rates need one row and one column for each of {count} hosts")
    if any(
        rate <= 0
        for source, row in enumerate(links.bytes_per_second)
        for other, rate in enumerate(row)
        if source != other
    ):
        raise ValueError("a rate between two hosts is not above zero")
    if len(links.island_bytes_per_second) != links.count:
        raise ValueError(
            f"{len(links.island_bytes_per_second)} rates of islands where there are {links.count}"
        )
    return links
