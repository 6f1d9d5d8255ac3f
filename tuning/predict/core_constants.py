"""The free constants of ranks that compute on a machine's own cores and talk over gloo. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuning.predict import beliefs
from tuning.predict.constants import Constants
from tuning.predict.kernels import Device

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
    **{name: beliefs.FREE[name] for name in ("gemm_half_width", "block_seconds", "step_seconds")},
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
