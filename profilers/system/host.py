"""The host's counters -> records: processors, memory, network and disk; what cannot be read is None."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from profilers.records.schema import CoreSample, FixedRecord, HostSample, NetworkSample
from profilers.system.host_sources import ERRORS, READINGS, Source, Values, source
from profilers.system.procfs import CpuTicks, InterfaceCounters
from profilers.system.sampling_rate import IntervalTimer

_LOOPBACK = ("lo", "lo0")
_NETWORK_FIELDS = ("network_sent_bytes", "network_received_bytes", "loopback_sent_bytes")
_NO_READING: dict[str, Any] = dict.fromkeys(field.name for field in fields(HostSample))
#: ``READINGS`` are read this often, and repeated in between: they move slowly, and cost most.
SLOW_SECONDS = 0.5


class Host:
    """Reads the host. ``counters`` says where from, ``wall_clock`` gives unix seconds."""

    def __init__(self, counters: Source | None = None, wall_clock: Callable[[], float] = time.time) -> None:
        self._source = counters or source()
        self._wall_clock = wall_clock
        self._missed: dict[str, str] = {}
        self._cpu_before = self._read("cpu", self._source.cpu)
        self._network = Interfaces()
        self._slow = IntervalTimer(SLOW_SECONDS)
        self._slow_values = dict[str, Any]()

    @property
    def missing(self) -> list[str]:
        """One line for each reading that failed, with its first error, and for each interface that went away."""
        return [*self._missed.values(), *self._network.gone.values()]

    def records(self) -> list[Sequence[FixedRecord]]:
        """All readings, by stream; busy fractions are those since the call before, or since this object was made."""
        now = self._wall_clock()
        cpu, traffic = self._read("cpu", self._source.cpu), self._read("network", self._source.network)
        before, self._cpu_before = self._cpu_before, cpu
        cores = [] if cpu is None else _cores(now, before, cpu)
        changed_samples = [] if traffic is None else self._network.changed_samples(now, traffic)
        return [[self._host(now, _together(before, cpu), traffic)], cores, changed_samples]

    def last(self) -> list[NetworkSample]:
        """The last counters of interfaces that stood still since: what the end of a run needs."""
        return self._network.unwritten_samples()

    def close(self) -> None:
        """Lets go of open files."""
        self._source.close()

    def _host(
        self, now: float, cpu: float | None, traffic: dict[str, InterfaceCounters] | None
    ) -> HostSample:
        if self._slow.due(now):
            for reading in READINGS:
                values: Values = self._read(reading.name, partial(self._source.values, reading))
                self._slow_values |= dict(
                    zip(reading.fields, values or (None,) * len(reading.fields), strict=True)
                )
        totals = (None, None, None) if traffic is None else _totals(traffic)
        network = dict(zip(_NETWORK_FIELDS, totals, strict=True))
        return HostSample(
            **_NO_READING | self._slow_values | network | {"time_unix": now, "cpu_fraction": cpu}
        )

    def _read(self, name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ERRORS as error:
            self._missed.setdefault(name, f"{name}: {error}")
            return None


class Interfaces:
    """Which counters of the interfaces are worth a record: those that moved, and the corner before they did."""

    def __init__(self) -> None:
        self._seen: dict[str, NetworkSample] = {}
        self._written: dict[str, NetworkSample] = {}
        #: One line for each interface that went away.
        self.gone: dict[str, str] = {}

    def changed_samples(self, now: float, traffic: dict[str, InterfaceCounters]) -> list[NetworkSample]:
        """Records of interfaces that moved; the first time, of all."""
        samples = []
        for name, counters in traffic.items():
            sample, before = NetworkSample(now, name, *counters), self._seen.get(name)
            if before is None or _counters(before) != counters:
                if before is not None and before is not self._written[name]:
                    samples.append(before)
                samples.append(sample)
                self._written[name] = sample
            self._seen[name] = sample
        for name in self._seen.keys() - traffic.keys():
            self.gone[name] = f"network: interface {name} went away"
            del self._seen[name]
        return samples

    def unwritten_samples(self) -> list[NetworkSample]:
        """The last look at each interface that has not moved since its last record."""
        return [sample for name, sample in self._seen.items() if sample is not self._written[name]]


def _counters(sample: NetworkSample) -> tuple[int, int, int, int]:
    return sample.sent_bytes, sample.received_bytes, sample.sent_packets, sample.received_packets


def _cores(now: float, before: Any, cpu: Any) -> list[CoreSample]:
    earlier = {} if before is None else before[1]
    return [CoreSample(now, core, _busy(earlier.get(core), ticks)) for core, ticks in cpu[1].items()]


def _together(before: Any, cpu: Any) -> float | None:
    return None if before is None or cpu is None else _busy(before[0], cpu[0])


def _busy(before: CpuTicks | None, now: CpuTicks) -> float | None:
    if before is None or now.total <= before.total:
        return None
    return min(1.0, max(0.0, (now.busy - before.busy) / (now.total - before.total)))


def _totals(traffic: dict[str, InterfaceCounters]) -> tuple[int | None, int | None, int | None]:
    """Bytes sent and received by all interfaces but loopback, and sent by that; None where there is none of a kind."""
    sent = received = loopback = None
    for name, counters in traffic.items():
        if name in _LOOPBACK:
            loopback = (loopback or 0) + counters.sent_bytes
        else:
            sent = (sent or 0) + counters.sent_bytes
            received = (received or 0) + counters.received_bytes
    return sent, received, loopback
