"""The frozen records that cross process borders, one class per stream.

Units are in the names. ``*_unix`` is wall-clock time in seconds (it joins ranks); durations come from a
monotonic clock. A reading that was not available is ``None``, never NaN or -1.

The metadata of a field says what becomes of its readings:

- ``GROWS``: it only grows while a run goes on. A Prometheus server gets it as a counter, all others as gauges; the
  field's name is the metric's, and ends with the unit.
- ``in_row``: how a run's summary sums it up.
- ``live_panel``: how pages draw it.
- ``KEEP_EXTREMES``: its lowest and highest readings stay when the records of a long run are thinned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

#: Metadata of a field that only grows.
GROWS = {"grows": True}
#: Metadata of a reading whose lowest and highest stay in each stretch of a long run, while other records are left out.
KEEP_EXTREMES = {"keep_extremes": True}


class Panel(NamedTuple):
    """How pages draw a reading over time: its title, the unit and what readings are multiplied with for it, how many
    digits, as a format, and from where to where the axis goes: from 0 to the largest reading unless it says so. ``of``
    is the field that tells how much there is. Of a counter its growth per second is drawn.
    """

    title: str
    unit: str = ""
    factor: float = 1.0
    digits: str = ",.0f"
    axis: tuple[float, float] | None = None
    of: str = ""


def live_panel(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Metadata of a field that has a :class:`Panel` of its own, ``KEEP_EXTREMES`` with it: of a GPU on the page Live,
    of a host or a rank's process there and among what a run left behind.
    """
    return KEEP_EXTREMES | {"panel": Panel(*arguments, **options)}


def in_row(
    *, mean: str = "", largest: str = "", limit: str = "", added: str = "", rate: str = ""
) -> dict[str, Any]:
    """Metadata of a field that a run's summary has: the fields of ``GpuRow``, or of ``HostRow``, that are the ``mean``
    or the ``largest`` of its readings in the measured steps, the largest of the whole run, as of a ``limit`` that is
    read less often, what a counter ``added`` during the run, or its ``rate`` per second in the measured steps. Those of
    ranks' processes are summed over the ranks of a host.
    """
    named = {"mean": mean, "largest": largest, "limit": limit, "added": added, "rate": rate}
    return {"row": {method: name for method, name in named.items() if name}}


#: Disjoint main-thread spans of a step; ``other`` is measured as the gaps between the named ones.
PHASES = ("data", "forward", "backward", "communication_exposed", "bubble", "optimizer", "other")


@dataclass(frozen=True, slots=True)
class StepSample:
    """One optimizer step on one rank. The seven phase spans sum to ``step_seconds``; all are None of a step that was
    not recorded in detail.

    ``between_seconds`` passed since the end of the step before: plans of compression, records, what the loop itself
    takes. Evaluation, checkpoints and orders are no part of it. None of a first step.
    """

    step: int
    measured: bool
    start_unix: float
    step_seconds: float
    cpu_seconds: float
    data_seconds: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    communication_exposed_seconds: float | None
    bubble_seconds: float | None
    optimizer_seconds: float | None
    other_seconds: float | None
    tokens: int | None
    loss: float | None
    gradient_norm: float | None
    between_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CommSample:
    """One collective or point-to-point call; a message lasts from when it is posted until that is looked at.

    ``bytes`` is the payload S of nccl-tests' definitions: the whole buffer for all-reduce, reduce and broadcast, the
    gathered output for all-gather, the unreduced input for reduce-scatter, all that a rank hands in for all-to-all, its
    own part included, one rank's part for gather and scatter, the message for send and recv. A barrier carries nothing
    of a caller's; its bytes are those of the tensor that torch passes along.
    ``exposed_seconds`` is the part during which the main thread stood waiting. ``sent_bytes`` is told where S does not
    decide what a rank sends: an all-to-all of uneven parts. ``algorithm`` is None for the backend's own.
    """

    step: int
    operation: str
    axis: str
    dtype: str
    group_size: int
    bytes: int
    start_unix: float
    seconds: float | None
    exposed_seconds: float | None
    sent_bytes: int | None = None
    algorithm: str | None = None


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory of one rank: the process's resident set, and the CUDA allocator where there is one.

    ``phase`` is what the rank did until this reading: of each phase of a step the reading is kept at which the peak
    grew, or where it did not, the one with most memory. Inactive split bytes are free parts of blocks in use
    (fragmentation); a retry is an allocation that only went through after cached blocks were given back.
    """

    step: int
    time_unix: float
    rss_bytes: int = field(metadata=KEEP_EXTREMES)
    peak_rss_bytes: int = field(metadata=KEEP_EXTREMES)
    cuda_allocated_bytes: int | None = field(metadata=KEEP_EXTREMES)
    cuda_peak_bytes: int | None = field(metadata=KEEP_EXTREMES)
    cuda_reserved_bytes: int | None
    phase: str | None = None
    cuda_inactive_split_bytes: int | None = None
    cuda_allocation_retries: int | None = field(default=None, metadata=GROWS)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU by NVML or AMD SMI, whose xGMI links are in NVLink's fields.

    The limits, NVLink's counters, ECC and processes are read once a second, and are None in the samples between; so
    is PCIe traffic on GPUs without performance monitoring. NVLink and ECC are counters; the ``active`` fractions and
    NVLink's rates are means since the sample before.
    """

    time_unix: float
    gpu: int
    utilization_fraction: float | None = field(
        metadata=in_row(mean="utilization") | live_panel("utilisation", "%", 100, ".0f", axis=(0, 105))
    )
    memory_used_bytes: int | None = field(
        metadata=in_row(largest="memory_used_bytes") | live_panel("memory", "GiB", 2**-30, ",.1f")
    )
    memory_total_bytes: int | None = field(metadata=in_row(largest="memory_total_bytes"))
    power_watts: float | None = field(
        metadata=in_row(mean="power_watts", largest="max_power_watts") | live_panel("power", "W")
    )
    #: In the summary by the mean power between its readings.
    energy_joules: float | None = field(metadata=GROWS)
    temperature_celsius: float | None = field(metadata=in_row(largest="max_temperature_celsius"))
    sm_clock_mhz: float | None = field(metadata=in_row(mean="sm_clock_mhz"))
    throttle_reasons: int | None
    pcie_tx_bytes_per_second: float | None = field(metadata=in_row(mean="pcie_tx_bytes_per_second"))
    pcie_rx_bytes_per_second: float | None = field(metadata=in_row(mean="pcie_rx_bytes_per_second"))
    memory_utilization_fraction: float | None = None
    memory_clock_mhz: float | None = None
    power_limit_watts: float | None = field(default=None, metadata=in_row(limit="power_limit_watts"))
    slowdown_celsius: float | None = field(default=None, metadata=in_row(limit="slowdown_celsius"))
    sm_clock_max_mhz: float | None = field(default=None, metadata=in_row(limit="sm_clock_max_mhz"))
    nvlink_tx_bytes: int | None = field(default=None, metadata=GROWS | in_row(added="nvlink_tx_bytes"))
    nvlink_rx_bytes: int | None = field(default=None, metadata=GROWS | in_row(added="nvlink_rx_bytes"))
    ecc_corrected: int | None = field(default=None, metadata=GROWS | in_row(added="ecc_corrected"))
    ecc_uncorrected: int | None = field(default=None, metadata=GROWS | in_row(added="ecc_uncorrected"))
    processes: int | None = None
    ranks_memory_bytes: int | None = field(default=None, metadata=in_row(largest="ranks_memory_bytes"))
    sm_active_fraction: float | None = field(default=None, metadata=in_row(mean="sm_active"))
    sm_occupancy_fraction: float | None = field(default=None, metadata=in_row(mean="sm_occupancy"))
    tensor_active_fraction: float | None = field(default=None, metadata=in_row(mean="tensor_active"))
    dram_active_fraction: float | None = field(default=None, metadata=in_row(mean="dram_active"))
    nvlink_tx_bytes_per_second: float | None = None
    nvlink_rx_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of a host: the launcher's own, or one with ranks. Counters are those since it was booted; memory,
    disk and load are read twice a second and repeated in between.
    """

    time_unix: float
    cpu_fraction: float | None = field(
        metadata=in_row(mean="cpu_fraction") | live_panel("CPU", "%", 100, ".0f", axis=(0, 105))
    )
    memory_used_bytes: int | None = field(
        metadata=in_row(largest="memory_used_bytes")
        | live_panel("memory", "GiB", 2**-30, ",.2f", of="memory_total_bytes")
    )
    memory_total_bytes: int | None = field(metadata=in_row(largest="memory_total_bytes"))
    network_sent_bytes: int | None = field(metadata=GROWS | in_row(rate="network_sent_bytes_per_second"))
    network_received_bytes: int | None = field(
        metadata=GROWS | in_row(rate="network_received_bytes_per_second")
    )
    loopback_sent_bytes: int | None = field(metadata=GROWS)
    disk_read_bytes: int | None = field(metadata=GROWS | in_row(rate="disk_read_bytes_per_second"))
    disk_written_bytes: int | None = field(metadata=GROWS | in_row(rate="disk_written_bytes_per_second"))
    load_1_minute: float | None = field(
        metadata=in_row(mean="load_1_minute") | live_panel("load over a minute", "processes", 1, ",.2f")
    )


@dataclass(frozen=True, slots=True)
class CoreSample:
    """How busy one logical processor was since the reading before; waiting for disks is idle."""

    time_unix: float
    core: int
    busy_fraction: float | None


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """Counters of one network interface since it came up, headers included.

    An interface that did not move is left out; before it moves again the last unchanged reading is written too, so
    that a rate between two records is right.
    """

    time_unix: float
    interface: str
    sent_bytes: int = field(metadata=GROWS)
    received_bytes: int = field(metadata=GROWS)
    sent_packets: int = field(metadata=GROWS)
    received_packets: int = field(metadata=GROWS)


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One rank's process as the sampler of its host sees it, since the process began.

    ``cpu_seconds`` is user and system time of all threads. Context switches are the main thread's: voluntary ones are
    waits, involuntary ones mean that somebody else got the processor. Read and written bytes are those of storage. All
    but ``cpu_seconds`` is read twice a second and repeated in between.
    """

    time_unix: float
    rank: int
    cpu_seconds: float | None = field(metadata=GROWS)
    rss_bytes: int | None
    threads: int | None
    voluntary_switches: int | None = field(metadata=GROWS)
    involuntary_switches: int | None = field(
        metadata=GROWS
        | in_row(rate="involuntary_switches_per_second")
        | live_panel("involuntary switches", "per second", 1, ",.1f")
    )
    read_bytes: int | None = field(metadata=GROWS)
    written_bytes: int | None = field(metadata=GROWS)


@dataclass(frozen=True, slots=True)
class ActionSample:
    """One action of a pipeline's schedule as a rank executed it, without the wait for its message.

    ``work`` is F (forward), B (backward), or its two parts I (of inputs) and W (of weights).
    """

    step: int
    work: str
    stage: int
    micro_batch: int
    start_unix: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SpanSample:
    """One phase of a step as a span of the main thread; kept of some steps."""

    step: int
    phase: str
    start_unix: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ExpertSample:
    """What fell on one expert of a layer from one rank's tokens of a step; of steps that are recorded in detail.

    ``choices`` counts a token once for each expert that it chose, ``dropped`` those of them that found no slot.
    ``probability`` is the router's for this expert, the mean over tokens. Ranks of tp have the same tokens, and one of
    them records. Where tokens that are alike travel as one, ``buckets`` are those that were sent, and ``residual`` is
    the mean, over choices, of a token's distance from the one that was sent for it, over its length.
    """

    step: int
    layer: int
    expert: int
    choices: int
    dropped: int
    probability: float
    buckets: int | None = None
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSample:
    """What a rank had of one task in a step: so many micro-batches, and the mean of their losses."""

    step: int
    task: str
    micro_batches: int
    loss: float | None


#: What is told of an event: the keys that its kind has, with plain values as JSON has them.
EventData = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something rare worth keeping: a phase of a run's life, a refused command, a function that the driver lacks."""

    time_unix: float
    kind: str
    data: EventData = field(default_factory=dict)


#: The kind of the event with which a rank tells that it went back to ``step``: of each stream the first so many
#: ``records`` that are of this step or a later one were undone.
UNDONE_EVENT = "undone"

FixedRecord = (
    StepSample
    | CommSample
    | MemorySample
    | GpuSample
    | HostSample
    | CoreSample
    | NetworkSample
    | ProcessSample
    | ActionSample
    | SpanSample
    | ExpertSample
    | TaskSample
)

#: Stream name -> record class. The name is the suffix of the file in a run's ``records`` folder.
STREAMS: dict[str, type[FixedRecord]] = {
    "step": StepSample,
    "comm": CommSample,
    "memory": MemorySample,
    "gpu": GpuSample,
    "host": HostSample,
    "core": CoreSample,
    "network": NetworkSample,
    "process": ProcessSample,
    "action": ActionSample,
    "span": SpanSample,
    "expert": ExpertSample,
    "task": TaskSample,
}


def growing_fields() -> frozenset[tuple[str, str]]:
    """Streams and their fields that only grow; everything else can go up and down."""
    return frozenset(
        (stream, field_.name)
        for stream, record in STREAMS.items()
        for field_ in fields(record)
        if "grows" in field_.metadata
    )


def extreme_fields(stream: str) -> tuple[str, ...]:
    """The fields of a stream whose lowest and highest readings stay when its records are thinned."""
    return tuple(field_.name for field_ in fields(STREAMS[stream]) if "keep_extremes" in field_.metadata)


def live_panels(stream: str) -> dict[str, Panel]:
    """The fields of a stream that have a panel, from the left."""
    return {
        field_.name: field_.metadata["panel"]
        for field_ in fields(STREAMS[stream])
        if "panel" in field_.metadata
    }


def row_fields(record_class: type[FixedRecord]) -> list[tuple[str, str, str]]:
    """Fields of a record class, how a field of a summary's row follows from its readings, and the name of that: see
    ``in_row``.
    """
    return [
        (field_.name, *pair)
        for field_ in fields(record_class)
        for pair in field_.metadata.get("row", {}).items()
    ]
