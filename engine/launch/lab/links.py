"""Links of a lab: their ends, whether they are up, and what was measured of them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.run import netns

End = tuple[str, str]
_SIOCGIFFLAGS = 0x8913  # https://man7.org/linux/man-pages/man7/netdevice.7.html
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_REQUEST = struct.Struct("16sH22x")


class Rates(NamedTuple):
    """What a link carries from its near end, and to it, in 10^6 bits per second."""

    sent_mbit: float
    received_mbit: float


@dataclass(frozen=True, slots=True)
class Link:
    """Two interfaces with a namespace each, and the hosts that are cut off where it is down.

    The near end is the host's, or the island's.
    """

    name: str
    rate_kbit: int
    near: End
    far: End
    hosts: tuple[int, ...]


class LinkStates:
    """Tells which links are down; cheap enough to be asked every second. ``close`` lets go of the namespaces.

    Raises:
        OSError: a namespace is not there.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._sockets: dict[str, socket.socket] = {}
        try:
            for namespace in dict.fromkeys(link.near[0] for link in links):
                self._sockets[namespace] = netns.run_inside(namespace, _socket)
        except BaseException:
            self.close()
            raise

    def down(self) -> list[Link]:
        """Links with an end that is down or gone, seen from the near end, which has no carrier then."""
        return [link for link in self._links if not self._is_up(link)]

    def close(self) -> None:
        """Let go of the namespaces."""
        for opened in self._sockets.values():
            opened.close()

    def _is_up(self, link: Link) -> bool:
        namespace, interface = link.near
        request = _REQUEST.pack(interface.encode(), 0)
        try:
            answer = fcntl.ioctl(self._sockets[namespace], _SIOCGIFFLAGS, request)
        except OSError:
            return False
        _, flags = _REQUEST.unpack(answer)
        return bool(flags & _IFF_UP and flags & _IFF_RUNNING)


def down_links(links: Sequence[Link]) -> list[Link]:
    """Those that are not there or not up."""
    down = []
    for link in links:
        try:
            with contextlib.closing(LinkStates([link])) as states:
                down += states.down()
        except OSError:
            down.append(link)
    return down


def describe_down_links(links: Iterable[Link], ranks_of: Sequence[Sequence[int]]) -> str:
    """One line about links that are down: whose they are, and the ranks behind them.

    ``ranks_of`` are the ranks of each host.
    """
    lines = []
    for link in links:
        ranks = [rank for host in link.hosts for rank in ranks_of[host]]
        noun = "ranks" if len(ranks) > 1 else "rank"
        lines.append(f"the link of lab {link.name} ({noun} {', '.join(map(str, ranks))}) is down")
    return "; ".join(lines)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
