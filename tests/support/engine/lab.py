"""Tests that need network namespaces, and what they count there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.run import netns
from profilers.analysis.wire_counters import ETHERNET_HEADER_BYTES
from profilers.system import procfs

REASON = netns.unavailability()
needs_lab = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces: {REASON}")


def counted(call: Callable[[], object], times: int) -> float:
    """Payload of TCP that this rank's host sent through its data interface, per call; every rank counts its own.

    The barriers around both readings keep other calls out; what they send themselves is taken off. A count during
    which the kernel of any rank's host sent a segment again (a busy machine answers late) is thrown away.
    """

    def between(repeated: int) -> int:
        while True:
            again = _sent_again()
            bytes_ = once(repeated)
            if not _on_any(_sent_again() != again):
                return bytes_

    def once(repeated: int) -> int:
        dist.barrier()
        before = _payload()
        dist.barrier()
        for _ in range(repeated):
            call()
        dist.barrier()
        after = _payload()
        dist.barrier()
        return after - before

    call()
    return (between(times) - between(0)) / times


def _on_any(here: bool) -> bool:
    told = torch.tensor(float(here))
    dist.all_reduce(told)
    return bool(told)


def _sent_again() -> int:
    """TCP segments that this host retransmitted so far."""
    names, values = (
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def _payload() -> int:
    time.sleep(0.05)  # notes of readiness may still be under way after a barrier
    traffic = procfs.interfaces(Path("/proc/self/net/dev").read_bytes())["data"]
    return traffic.sent_bytes - ETHERNET_HEADER_BYTES * traffic.sent_packets


def on_the_wire(measured: float | None, calls: float) -> Any:
    """What a formula has to say: within 1 %, or 4 KB for each of up to four calls if that is more. A busy machine lets
    TCP send a segment twice, which the counters see.
    """
    return pytest.approx(measured, rel=0.01, abs=4096 * min(calls, 4))
