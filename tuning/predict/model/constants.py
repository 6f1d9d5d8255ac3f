"""The few free constants of the closed forms: what a device and its network reach of their figures. Pure.

``START`` is what they are believed to be before anything is measured, ``FREE`` how far a fit may move each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Constants:
    """All positive. Shares are of a figure in ``hardware``; seconds are of one call.

    - ``gemm_share``: of the peak rate, for a product so large that nothing else counts.
    - ``gemm_half_width``: inner or outer width of a product at which half of that is reached.
    - ``odd_share``: of that rate, for a product whose rows have an odd number of values.
    - ``attention_share``: of the peak rate, for attention that never writes its scores (FlashAttention).
    - ``memory_share``: of the memory's bandwidth, for element by element work.
    - ``block_passes``: times a block's hidden values go to memory and back, forward.
    - ``score_passes``: the same of its attention scores, where they are written.
    - ``block_seconds``: least time of a block's forward, however small: what its launches cost the host.
    - ``host_spread``: slowest of n hosts whose ranks wait for each other in every block over one, less 1, for each
      doubling of n.
    - ``inside_share``, ``between_share``: of the links' rates, for collectives inside and between nodes.
    - ``inside_seconds``, ``between_seconds``: of one collective's start, for each doubling of its ranks.
    - ``hop_seconds``: of one hop of a gather or scatter over nodes, which passes its ranks one after the other.
    - ``message_share``: of the links' rates, for point-to-point messages.
    - ``hidden_share``: of a backward, how much of it can have gradients' messages beside it.
    - ``tensor_hidden_share``: of a block's products, how much of them can have tp's messages beside them.
    - ``shard_hidden_share``: of a micro-batch's computation, how much of it can hide sharded parameters' messages.
    - ``shard_edge``: of those messages, what nothing hides: the first gather and the last scatter.
    - ``update_passes``: times the optimizer's bytes go to memory and back in an update.
    - ``step_seconds``: of a step, whatever it holds.
    - ``piped_seconds``: of one collective of tp beside messages between nodes, for each of its ranks.
    - ``spread``: slowest of n ranks over the mean, less 1, for each doubling of n.
    """

    gemm_share: float = 0.65
    gemm_half_width: float = 200.0
    odd_share: float = 0.6
    attention_share: float = 0.4
    memory_share: float = 0.8
    block_passes: float = 10.0
    score_passes: float = 6.0
    block_seconds: float = 3e-4
    host_spread: float = 0.03
    inside_share: float = 0.8
    between_share: float = 0.7
    inside_seconds: float = 1e-5
    between_seconds: float = 2e-5
    hop_seconds: float = 2e-5
    message_share: float = 0.6
    hidden_share: float = 0.5
    tensor_hidden_share: float = 0.3
    shard_hidden_share: float = 0.9
    shard_edge: float = 0.05
    update_passes: float = 2.0
    step_seconds: float = 5e-3
    piped_seconds: float = 1e-6
    spread: float = 0.005

    def put(self, **values: float) -> Constants:
        """The same with other values."""
        return replace(self, **values)


#: ``gemm_share`` is held, not fitted: a fit to small models alone would trade it for their launches and extrapolate
#: to more than a device can do. 0.78 of the peak is what large products reach on an A100; benchmarks/prediction.py
#: prints what another value does to its tables. A block in eager mode is some 60 launches of about 10 us.
#: ``between_share``: NCCL's large all-reduces over nodes were measured at 0.60 and 0.96 (NVIDIA/nccl issue 812), 0.75
#: (495), 0.95 (1368), 0.91, 0.80 and 0.86 (nccl-tests issues 100, 160, 175) and 0.94 (stas00/ml-engineering,
#: network/benchmarks, its cards taken as 400 Gb/s) of the cards' rates: their geometric mean, and in ``FREE`` their
#: standard deviation. Excerpts were read; threads about a fault (nccl-tests 152, nccl 837) are left out.
START = Constants(
    gemm_share=0.78,
    gemm_half_width=150.0,
    between_share=0.84,
    block_passes=8.0,
    attention_share=0.35,
    block_seconds=6e-4,
    shard_edge=0.3,
)

#: Ends between which each constant means something, whatever rows say: a share of a figure is 1 at the most and a
#: hundredth at the least, seconds are of what clocks and wires can do.
LIMITS: Mapping[str, tuple[float, float]] = {
    "gemm_share": (0.01, 1.0),
    "gemm_half_width": (1.0, 2000.0),
    "odd_share": (0.05, 1.0),
    "attention_share": (0.01, 1.0),
    "memory_share": (0.01, 1.0),
    "block_passes": (0.5, 60.0),
    "score_passes": (0.5, 30.0),
    "block_seconds": (1e-6, 0.05),
    "host_spread": (1e-6, 0.5),
    "inside_share": (0.01, 1.0),
    "between_share": (0.01, 1.0),
    "inside_seconds": (1e-7, 3e-5),
    "between_seconds": (1e-7, 1e-2),
    "hop_seconds": (1e-7, 1e-3),
    "message_share": (0.01, 1.0),
    "hidden_share": (0.01, 1.0),
    "tensor_hidden_share": (0.01, 1.0),
    "shard_hidden_share": (0.01, 1.0),
    "shard_edge": (0.001, 1.0),
    "update_passes": (0.1, 20.0),
    "step_seconds": (1e-5, 5.0),
    "piped_seconds": (1e-10, 1e-2),
    "spread": (1e-6, 0.5),
}

#: The same where figures were measured and not taken from a data sheet: what is reached may be twice a share of them,
#: and a collective among processes on CPUs starts slower than one of GPUs.
MEASURED_LIMITS: Mapping[str, tuple[float, float]] = {
    **{name: (low, 2 * high if name.endswith("_share") else high) for name, (low, high) in LIMITS.items()},
    "inside_seconds": LIMITS["between_seconds"],
}

#: Standard deviation of each belief as a natural logarithm: 0.7 is a factor of two.
FREE: Mapping[str, float] = {
    "gemm_half_width": 0.4,
    "odd_share": 0.15,
    "attention_share": 0.3,
    "memory_share": 0.1,
    "block_passes": 0.3,
    "score_passes": 0.3,
    "block_seconds": 0.7,
    "host_spread": 0.7,
    "inside_share": 0.15,
    "between_share": 0.16,
    "inside_seconds": 1.0,
    "between_seconds": 1.0,
    "hop_seconds": 1.0,
    "message_share": 0.4,
    "hidden_share": 0.5,
    "tensor_hidden_share": 0.5,
    "shard_hidden_share": 0.3,
    "shard_edge": 0.7,
    "update_passes": 0.4,
    "step_seconds": 1.0,
    "piped_seconds": 2.5,
    "spread": 0.5,
}
