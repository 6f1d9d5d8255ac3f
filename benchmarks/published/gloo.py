"""What one call costs gloo ranks: its messages, its bytes, and its seconds on a link of a known rate. Pure.

The algorithms are those of ``engine.comm.channel``: rings of gloo's own, and one exchange for reduce-scatter and for
what is small. ``profilers.collectives.wire_bytes`` counts their bytes. The constants are of ranks that compute on a
machine's own cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from profilers.collectives.wire_bytes import EXCHANGE, GLOO_MESSAGE_BYTES, message_bytes, wire_bytes
from tuning.predict.cluster.this_machine import payload_rate
from tuning.predict.model import constants
from tuning.predict.model.compute import Device
from tuning.predict.model.constants import Constants
from tuning.predict.traffic.calls import Call

#: A core of a usual server in fp32, FLOP/s and bytes/s: constants say what is reached of it, so any figures will do.
CORE = Device(6e10, 1e10)


@dataclass(frozen=True, slots=True)
class CoreConstants(Constants):
    """Those of ``Constants`` that tell of computation, of one core, and more of them, all positive.

    - ``action_seconds``: of a core, for each action of a schedule, beside its blocks.
    - ``message_seconds``: of a core, for each message of a collective: system calls, and threads that wake up.
    - ``hop_seconds``: of a core, for each hop of a ring of cp: one more part of attention, merged into the others.
    - ``byte_seconds``: of a core, for a byte that is sent, and one that is received: copies, sums, the kernel's TCP.
    - ``waiting_share``: of a core, while bytes are under way: the slower they come, the more often a rank wakes.
    - ``unseen``: what messages cost the machine beyond what its processes are charged with, in times of that.
    - ``cores_share``: of the cores, what ranks have of them.
    - ``latency_seconds``: of one message from rank to rank, whatever its size.
    - ``link_share``: of a link's rate, what gloo's rings reach.
    - ``paired``: of a ring of two, how often its opposing messages go one after the other (1: always).
    - ``opposed``: of gloo's own all-to-all, how often two opposing messages go one after the other (1: always).
    """

    action_seconds: float = 1e-3
    message_seconds: float = 1e-4
    hop_seconds: float = 5e-4
    byte_seconds: float = 2e-9
    waiting_share: float = 0.05
    unseen: float = 0.5
    cores_share: float = 1.0
    latency_seconds: float = 1e-4
    link_share: float = 0.97
    paired: float = 0.05
    opposed: float = 0.8


START = CoreConstants(
    gemm_share=1.5,
    gemm_half_width=30.0,
    attention_share=0.2,
    memory_share=1.0,
    block_passes=40.0,
    block_seconds=1e-3,
    step_seconds=5e-3,
)
#: What seconds of a core tell, and how far each may move; see ``beliefs.FREE``.
OF_WORK: Mapping[str, float] = {
    **{name: constants.FREE[name] for name in ("gemm_half_width", "block_seconds", "step_seconds")},
    **dict.fromkeys(("gemm_share", "attention_share", "block_passes", "update_passes"), 0.5),
    **dict.fromkeys(
        ("action_seconds", "message_seconds", "hop_seconds", "byte_seconds", "waiting_share"), 1.0
    ),
}
#: What seconds of a step tell, once those of a core are known.
OF_STEPS: Mapping[str, float] = {
    "unseen": 0.7,
    "cores_share": 0.05,
    "latency_seconds": 1.0,
    "link_share": 0.05,
    "paired": 1.0,
    "opposed": 0.3,
}


def byte_seconds(constants: CoreConstants, bytes_per_second: float) -> float:
    """Of a core, for a byte that a rank sends and one that it receives over links of that rate."""
    return constants.byte_seconds + constants.waiting_share / bytes_per_second


#: ``engine.exchange.SMALL``, which comes with torch: bytes up to which there is one exchange instead of a ring.
SMALL = 1 << 16
_RINGS = ("all_reduce", "all_gather")


class Load(NamedTuple):
    """Of one rank: messages that it handles, bytes that it sends, and the mean of those and what it receives."""

    messages: float
    sent: float
    handled: float


def algorithm_of(call: Call) -> str | None:
    """What the engine does in place of gloo's own."""
    size = call.bytes or 0
    small = {
        "all_gather": call.group_size > 2 and call.tag is None and size <= SMALL,
        "all_reduce": call.tag is None and call.group_size * size <= SMALL,
        "reduce_scatter": True,
    }
    return EXCHANGE if small.get(call.operation, False) else None


@lru_cache(maxsize=4096)
def load_of(call: Call) -> Load:
    """What a call has a rank do."""
    if call.group_size == 1:
        return Load(0.0, 0.0, 0.0)
    what = call.operation, "gloo", algorithm_of(call), call.group_size
    payload = np.array([float(call.bytes or 0)])
    whole = wire_bytes(*what, payload)
    sent = 0.0 if whole is None else float(whole[0])
    messages = float(message_bytes(*what, payload)[0]) / GLOO_MESSAGE_BYTES
    if call.operation in ("send", "recv"):
        return Load(0.5, sent, float(call.bytes or 0) / 2)
    return Load(messages, sent, sent)


def seconds_of(call: Call, bytes_per_second: float, constants: CoreConstants) -> float:
    """On links of that rate, with nothing else on them."""
    if call.operation == "recv" or call.group_size == 1:
        return 0.0  # that is its sender's
    moved = load_of(call).sent / (bytes_per_second * constants.link_share)
    if call.operation == "reduce_scatter" and call.tag is not None:
        moved *= 1 + constants.opposed / (call.group_size - 1)
    elif call.group_size == 2 and call.operation in _RINGS:
        moved *= 1 + constants.paired
    return rounds(call) * constants.latency_seconds + moved


def rounds(call: Call) -> int:
    """Messages that follow each other."""
    others = call.group_size - 1
    if algorithm_of(call) == EXCHANGE:
        return 1
    return {"all_reduce": 2 * others, "all_gather": others}.get(call.operation, 1)


def rate_of(config: RunConfig) -> float:
    """Bytes/s of payload on each rank's link in the lab.

    Raises:
        InputError: ranks share hosts, or links differ or have no rate.
    """
    lab, ranks = config.lab, layout_of(config).world_size
    if lab.hosts != ranks or lab.islands is not None:
        raise InputError("lab.hosts", lab.hosts, f"give each of the {ranks} ranks a host, without islands")
    if lab.rate_mbit is None:
        raise InputError("lab.rate_mbit", None, "links need a rate")
    return payload_rate(lab.rate_mbit)
