"""How much of each link's rate the ranks of a lab use: of a run that has ended, or lately of one under way. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.config.errors import InputError
from engine.config.network import Shape, shape_of
from engine.config.run_config import parse
from workbench.live import Snapshot
from workbench.series import Columns

MEGA = 1e6
#: Readings of a run under way that count: its last so many seconds.
LATELY_SECONDS = 10.0
#: Title of a column -> field of a :class:`LinkUse`.
TITLES = {
    "interface": "interface",
    "ranks": "ranks",
    "sent, MB/s": "sent",
    "received, MB/s": "received",
    "rate, Mbit/s": "rate_mbit",
    "sent, % of the rate": "sent_percent",
    "received, % of the rate": "received_percent",
}


class LinkUse(NamedTuple):
    """One interface; speeds in 10^6 bytes per second, headers included."""

    interface: str
    ranks: str
    sent: float
    received: float
    rate_mbit: float | None
    sent_percent: float | None
    received_percent: float | None


def link_uses(seen: Snapshot) -> list[LinkUse]:
    """A row for each interface that carried anything; over the measured steps once the run has a summary."""
    rows = (seen.summary or {}).get("interfaces")
    if rows is None:
        return _lately(seen)
    return [
        _use(
            row["interface"],
            row["ranks"],
            row["sent_bytes_per_second"],
            row["received_bytes_per_second"],
            row.get("rate_mbit"),
        )
        for row in rows
    ]


def _lately(seen: Snapshot) -> list[LinkUse]:
    shape, ranks = _shape(seen), int(seen.status.get("world_size") or 0)
    if shape is None or not ranks or ranks % shape.hosts:
        return []
    placed = (seen.config.get("parallel") or {}).get("placement")
    hosts, found = shape.hosts_of_ranks(placed or range(ranks)), []
    for rank, columns in sorted(seen.interfaces.items()):
        host = hosts[rank]
        island = [other for other in range(ranks) if shape.island_of(hosts[other]) == shape.island_of(host)]
        users = {"uplink": island}
        rates = {"data": shape.rate_kbit(host), "uplink": shape.between_kbit}
        for name in sorted(set(columns["interface"].tolist())):
            mine = [other for other in range(ranks) if hosts[other] == host]
            speeds = _speeds(columns, name)
            if any(speeds):
                rate = rates.get(name, 0) / 1000 or None
                found.append(_use(name, users.get(name, mine), *speeds, rate))
    return found


def _speeds(columns: Columns, name: str) -> tuple[float, float]:
    own = np.flatnonzero(columns["interface"] == name)
    times = columns["time_unix"][own]
    own = own[times >= times[-1] - LATELY_SECONDS]
    seconds = float(columns["time_unix"][own[-1]] - columns["time_unix"][own[0]])
    if seconds <= 0:
        return 0.0, 0.0
    sent, received = (
        float(columns[f"{way}_bytes"][own[-1]] - columns[f"{way}_bytes"][own[0]]) / seconds
        for way in ("sent", "received")
    )
    return sent, received


def _use(name: str, ranks: list[int], sent: float, received: float, rate_mbit: float | None) -> LinkUse:
    percents = [speed * 8 / MEGA / rate_mbit * 100 if rate_mbit else None for speed in (sent, received)]
    return LinkUse(name, ", ".join(map(str, ranks)), sent / MEGA, received / MEGA, rate_mbit, *percents)


def _shape(seen: Snapshot) -> Shape | None:
    try:
        return shape_of(parse({"lab": seen.config.get("lab") or {}}).lab)
    except InputError:
        return None
