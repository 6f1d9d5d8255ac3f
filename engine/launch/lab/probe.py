"""Measures what a lab's links carry, each way for itself, by TCP through it and the counters of its interfaces."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.formulas.network import rate_words
from engine.launch.lab.build import LabError
from engine.launch.lab.links import End, Link, Rates
from engine.run import netns
from profilers.analysis.wire_counters import ETHERNET_HEADER_BYTES
from profilers.system import procfs
from profilers.system.procfs import ProcFile

TOLERANCE = 0.05
#: Links measured at a time carry at most so much together, so that they do not take the processor from each other.
_TOGETHER_KBIT = 400_000
_SLOW_KBIT = 100_000
_SETTLE_SECONDS, _WINDOW_SECONDS, _SLOW_WINDOW_SECONDS = 0.04, 0.08, 0.2
#: A link that is off is measured again: so often at most, or until so many in a row are the same within 1 %.
_TRIES, _ALIKE, _SAME = 30, 3, 0.01
_PATIENCE_SECONDS = 5.0
_FRAME_BYTES = 1514
_CHUNK = bytes(1 << 18)
#: What may wait at either end, in seconds of the rate: longer than a busy machine lets a process wait.
_BUFFER_SECONDS, _MIN_BUFFER_BYTES = 0.05, 1 << 16
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = (
    32,
    33,
)  # beyond the machine's limits: https://man7.org/linux/man-pages/man7/socket.7.html
_PROMPT_SECONDS, _READINGS = 0.001, 20
_ABORT = struct.pack("ii", 1, 0)  # close at once, without sending what is left
_SIOCGIFADDR = 0x8915


def measure(links: Sequence[Link]) -> dict[Link, Rates]:
    """What each link that has a rate carries each way; links have to have addresses at both ends.

    Raises:
        LabError: a link does not carry its rate within 5 %, also when it is measured again, alone.
    """
    measured: dict[Link, Rates] = {}
    for link_batch in _batches([link for link in links if link.rate_kbit]):
        measured |= _both_ways(link_batch)
    for link in measured:
        measured[link] = _remeasure(link, measured[link])
        if _deviation(link, measured[link]) > TOLERANCE:
            raise LabError(_refusal(link, measured[link]))
    return measured


def _remeasure(link: Link, first: Rates) -> Rates:
    """The nearest to the rate of what a link carries, measured again until it is right or always the same.

    A busy machine makes a link slower than it is, for a while; a link that is slow is slow every time.
    """
    tries = [first]
    while _deviation(link, _nearest(link, tries)) > TOLERANCE and len(tries) < _TRIES:
        tries.append(_both_ways([link], 2)[link])
        ways = list(zip(*tries[-_ALIKE:], strict=True))
        if len(tries) >= _ALIKE and all(max(way) <= min(way) * (1 + _SAME) for way in ways):
            break
    return _nearest(link, tries)


def _nearest(link: Link, tries: Sequence[Rates]) -> Rates:
    wanted_mbit = link.rate_kbit / 1000
    return Rates(*(min(way, key=lambda rate: abs(rate - wanted_mbit)) for way in zip(*tries, strict=True)))


def _refusal(link: Link, rates: Rates) -> str:
    ways = f"{rates.sent_mbit:,.1f} Mbit/s from it and {rates.received_mbit:,.1f} to it"
    return (
        f"the link of lab {link.name} was asked to carry {rate_words(link.rate_kbit)}, and carries {ways}: "
        f"more than {TOLERANCE:.0%} off; ask for less, or for no rate"
    )


def _deviation(link: Link, rates: Rates) -> float:
    wanted_mbit = link.rate_kbit / 1000
    return max(abs(rate / wanted_mbit - 1) for rate in rates)


def _batches(links: Sequence[Link]) -> Iterator[list[Link]]:
    batch: list[Link] = []
    for link in links:
        if batch and sum(planned.rate_kbit for planned in batch) + link.rate_kbit > _TOGETHER_KBIT:
            yield batch
            batch = []
        batch.append(link)
    if batch:
        yield batch


def _both_ways(links: Sequence[Link], times_longer: int = 1) -> dict[Link, Rates]:
    try:
        sent = _measure_flows([_Flow(link, link.near, link.far) for link in links], times_longer)
        received = _measure_flows([_Flow(link, link.far, link.near) for link in links], times_longer)
    except OSError as error:
        names = ", ".join(link.name for link in links)
        raise LabError(f"the links of lab {names} could not be measured: {error}") from None
    return {link: Rates(*rates) for link, *rates in zip(links, sent, received, strict=True)}


def _measure_flows(flows: Sequence[_Flow], times_longer: int) -> list[float]:
    """10^6 bits per second of whole frames, as the shaper counts them, while all flows are under way."""
    slow = any(flow.link.rate_kbit < _SLOW_KBIT for flow in flows)
    with contextlib.ExitStack() as stack:
        counters = [stack.enter_context(flow.running()) for flow in flows]
        time.sleep(_SETTLE_SECONDS)
        before = [_promptly(read) for read in counters]
        time.sleep((_SLOW_WINDOW_SECONDS if slow else _WINDOW_SECONDS) * times_longer)
        after = [_promptly(read) for read in counters]
    segments = _FRAME_BYTES / (_FRAME_BYTES - ETHERNET_HEADER_BYTES)
    return [
        (late - early) * segments * 8 / (ended - began) / 1e6
        for (began, early), (ended, late) in zip(before, after, strict=True)
    ]


def _promptly(read: Callable[[], int]) -> tuple[float, int]:
    """When a counter was read, and what it said; again where the reading was held up."""
    for _ in range(_READINGS):
        begin = time.perf_counter()
        answer = read()
        end = time.perf_counter()
        if end - begin < _PROMPT_SECONDS:
            break
    return (begin + end) / 2, answer


@dataclass(frozen=True, slots=True)
class _Flow:
    """A connection from one end of a link to the other."""

    link: Link
    source: End
    target: End

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[], int]]:
        """While this lasts it carries what it can; gives a reader of the payload bytes sent so far."""
        counters = ProcFile(Path("/proc/thread-self/net/dev"))
        netns.run_inside(self.source[0], counters.read)  # opened there, it tells of there ever after

        def sent() -> int:
            traffic = procfs.interfaces(counters.read())[self.source[1]]
            return traffic.sent_bytes - ETHERNET_HEADER_BYTES * traffic.sent_packets

        sender, receiver = self._connect()
        threads = [
            threading.Thread(target=_pour, args=(sender,)),
            threading.Thread(target=_drain, args=(receiver,)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield sent
        finally:
            for process in (sender, receiver):
                with contextlib.suppress(OSError):
                    process.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            sender.close()
            receiver.close()
            counters.close()

    def _connect(self) -> tuple[socket.socket, socket.socket]:
        buffer = max(_MIN_BUFFER_BYTES, int(self.link.rate_kbit * 125 * _BUFFER_SECONDS))
        with netns.run_inside(self.target[0], lambda: _listener(self.target[1], buffer)) as listener:
            sender = netns.run_inside(self.source[0], lambda: _connection(listener.getsockname(), buffer))
            return sender, listener.accept()[0]


def _listener(interface: str, buffer_bytes: int) -> socket.socket:
    listener = socket.socket()
    answer = fcntl.ioctl(listener, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
    listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
    listener.bind((socket.inet_ntoa(answer[20:24]), 0))
    listener.listen(1)
    return listener


def _connection(address: tuple[str, int], buffer_bytes: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, buffer_bytes)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    connection.settimeout(_PATIENCE_SECONDS)
    connection.connect(address)
    return connection


def _pour(sender: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is shut down, which ends this
        while True:
            sender.send(_CHUNK)


def _drain(receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # What is received is dropped by the kernel, uncopied: https://man7.org/linux/man-pages/man7/tcp.7.html
        while receiver.recv(len(_CHUNK), socket.MSG_TRUNC):
            pass
