"""What a rank holds of a GPU outside torch's allocator: a CUDA context, and buffers of NCCL's communicators. Pure.

Believed, not measured here: a finished run on GPUs has ``outside_allocator_bytes`` to compare with.

- Context: 287 MB with kernels loaded as they are used, 667 MB with all of them (pytorch/pytorch pull request 86509);
  300 to 400 MB by pytorch/pytorch issues 107667 and 109888. Training loads more kernels than these, and libraries.
- Buffers, by NVIDIA/nccl at 5067397c (2.30): the receiving end of a connection has one for each protocol
  (``src/init.cc``, ``src/transport/p2p.cc``), 10 MiB in steps of 2 MiB, the sending end 2 MiB; NVIDIA/nccl issue 1685
  counted allocations of just these sizes. Each channel has three small ones more (``src/channel.cc``), of 2 MiB each.
  Where NCCL reads from its peer the sending end has Simple's buffer: both ends together come to the same by default.
- Channels: 24 for collectives and 32 for messages in logs of A100 and H100 nodes, 2 over PCIe
  (``src/graph/paths.cc``). The upper end has 32, trees beside rings, and sums in switches (``src/transport/nvls.cc``).

By that a communicator of two A100s takes 480 MiB, where NVIDIA/nccl issue 964 measured 544 on an older NCCL; an
all-to-all of eight H100s takes 2.8 GiB, where issue 1685 measured 3.3 GB. Between nodes, and in RCCL, sizes are taken
to be the same. A rank's ends of connections are taken to be on its own GPU, not in the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig

_MIB = 2**20
#: Least, likely and most bytes of a context with its libraries.
CONTEXT_BYTES = (287_047_680, 512 * _MIB, 1024 * _MIB)
#: Channels of a collective: over PCIe, as nodes with NVLink have, and most that was seen; NCCL's own limit is 64.
CHANNELS = (2, 24, 32)
#: The driver hands out device memory in steps of so many bytes.
_STEP = 2 * _MIB
#: Bytes of the buffers of protocols LL and LL128, and of Simple unless NCCL_BUFFSIZE is set.
_LL, _LL128, SIMPLE = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 * _MIB
_SMALL, _HEAD = 3 * _STEP, 4096
#: Sums in NVLink's switches: channels, bytes of a buffer, and the ranks of a node, each of which has its two.
_SWITCH_CHANNELS, _SWITCH_BYTES, _NODE = 24, _MIB, 8

#: How a group's communicator is used: ``sends`` and ``receives`` are the two ends of a pair of pipeline ranks.
Use = Literal["collective", "exchange", "ring", "sends", "receives"]


class Communicator(NamedTuple):
    """One of NCCL's, of so many ranks, as one of them sees it."""

    axis: str
    ranks: int
    use: Use


@dataclass(frozen=True, slots=True)
class DeviceOverhead:
    """Bytes of one rank that its allocator does not count: likely, and from ``low`` to ``high``."""

    likely: int = 0
    low: int = 0
    high: int = 0
    communicators: tuple[Communicator, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = [communicator._asdict() for communicator in self.communicators]
        return {"median": self.likely, "low": self.low, "high": self.high, "communicators": rows}


class NcclSettings(NamedTuple):
    """What a configuration sets of it; None and True are NCCL's own choice."""

    ulysses: bool = False
    buffer_bytes: int = SIMPLE
    least_channels: int | None = None
    most_channels: int | None = None
    switches: bool = True


def device_overhead(config: RunConfig) -> DeviceOverhead:
    """Of a rank on a GPU: one on a CPU has nothing of it."""
    return layout_overhead(layout_of(config), nccl_settings(config))


def nccl_settings(config: RunConfig) -> NcclSettings:
    """What a configuration and its environment say."""
    set_ = config.environment
    most = [limit for limit in (set_.NCCL_MAX_NCHANNELS, set_.NCCL_MAX_CTAS) if limit is not None]
    least = [limit for limit in (set_.NCCL_MIN_NCHANNELS, set_.NCCL_MIN_CTAS) if limit is not None]
    return NcclSettings(
        ulysses=config.parallel.cp_method == "ulysses",
        buffer_bytes=SIMPLE if set_.NCCL_BUFFSIZE is None else set_.NCCL_BUFFSIZE,
        least_channels=max(least, default=None),
        most_channels=min(most, default=None),
        switches=set_.NCCL_NVLS_ENABLE != 0,
    )


def layout_overhead(layout: Layout, wanted: NcclSettings) -> DeviceOverhead:
    """The same of a layout; of a pipeline's rank with most neighbours."""
    groups = tuple(communicators(layout, wanted.ulysses))
    low, likely, high = (
        context + sum(_bytes(group, _channels(channels, wanted), wanted, largest) for group in groups)
        for context, channels, largest in zip(CONTEXT_BYTES, CHANNELS, (False, False, True), strict=True)
    )
    return DeviceOverhead(likely, low, high, groups)


def communicators(layout: Layout, ulysses: bool = False) -> Iterator[Communicator]:
    """Those that ``engine.comm.context`` and ``PipelineMessages.connect`` make for a rank; none of a single rank.

    A pipeline has one for each neighbour and direction: its rank receives in one and sends in the other.
    """
    whole = {
        "world": layout.world_size,
        "data": layout.inner,
        "shard": layout.shard if 1 < layout.shard < layout.inner else 1,
        "replicate": layout.inner // layout.shard if 1 < layout.shard < layout.inner else 1,
        "edp": layout.inner // layout.ep if layout.ep > 1 else 1,
        "tp": layout.tp,
        "norm": _norm(layout),
        "outer": layout.replicas,
    }
    yield from (Communicator(axis, ranks, "collective") for axis, ranks in whole.items() if ranks > 1)
    if layout.ep > 1:
        yield Communicator("ep", layout.ep, "exchange")
    if layout.ep_island:
        yield Communicator("ep_island", layout.ep_island, "exchange")
        yield Communicator("ep_between", layout.ep // layout.ep_island, "exchange")
    for degree in layout.sequence_degrees:
        yield Communicator(f"sequence_{degree}", degree, "exchange")
    if layout.cp > 1:
        yield Communicator("cp", layout.cp, "exchange" if ulysses else "ring")
    for _ in range(min(layout.pp - 1, 2)):
        yield Communicator("pp", 2, "receives")
        yield Communicator("pp", 2, "sends")


def _norm(layout: Layout) -> int:
    """Ranks of the group for the gradients' norm, where it is none of the others."""
    if layout.data_ranks_differ:
        return layout.world_size // layout.replicas if layout.replicas > 1 else 1
    return layout.pp * layout.tp if layout.pp > 1 else 1


def _channels(usual: int, wanted: NcclSettings) -> int:
    return max(
        min(usual, wanted.most_channels or usual), wanted.least_channels or 1
    )  # as NCCL: the least wins


def _bytes(communicator: Communicator, channels: int, wanted: NcclSettings, largest: bool) -> int:
    """On the device. ``largest``: beside a ring trees as well, and sums in switches."""
    receiving, sending = _steps(_HEAD + _LL + _LL128 + wanted.buffer_bytes), _STEP
    both = receiving + sending
    messages = 1 << (channels - 1).bit_length()  # a power of two
    connected = {
        "collective": channels * both * (2 if largest and communicator.ranks > 2 else 1),
        "exchange": messages * both * (communicator.ranks - 1),
        "ring": messages * both,
        "sends": messages * sending,
        "receives": messages * receiving,
    }[communicator.use]
    in_switches = largest and wanted.switches and communicator.use == "collective"
    summed = 2 * _SWITCH_CHANNELS * _SWITCH_BYTES * min(communicator.ranks, _NODE) if in_switches else 0
    return messages * _SMALL + connected + summed


def _steps(size: int) -> int:
    return -(-size // _STEP) * _STEP
