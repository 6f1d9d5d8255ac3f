"""What a run amounts to: the numbers that ``show``, the tuner and the pages rely on, with stable keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from profilers.model.environment import EnvironmentRow
from profilers.model.links import Links
from profilers.model.machine_rows import GpuRow, HostRow
from profilers.model.rows import (
    AdapterRow,
    ChangeRow,
    CheckpointRow,
    ClockRow,
    ExpertRow,
    ExpertSlotRow,
    GapRow,
    InterfaceRow,
    MemoryPlanRow,
    NetworkRow,
    OuterRow,
    PartialProductsRow,
    PipelineRow,
    PlanRow,
    PrefetchRow,
    QualityRow,
    ResumeRow,
    SequenceGroupRow,
    SequencePlanRow,
    SkewRow,
    TaskRow,
    UpdateRow,
)
from profilers.model.verdict import Episode, Setting, Verdict


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What was trained, by its name, what its metric is called if it has one, and why its FLOPs are not known.

    The name is None of a trainer that is not this project's.
    """

    name: str | None = "decoder"
    metric: str | None = None
    flops_reason: str = "the model's FLOPs per step are not known"
    #: How many more parameters it would have if none were shared.
    shared_parameters: int = 0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the records themselves do not say.

    ``peak_flops_per_second`` is that of one device (the mean, where they differ), for the run's precision;
    ``peak_source`` says where it is from, or why there is none. FLOPs per step are the work of all ranks: the model's
    without recomputation, the hardware's with it; ``mfu_convention`` says what they count.
    """

    run: str
    layout: dict[str, int]
    world_size: int
    backend: str
    tokens_per_step: int | None
    model_flops_per_step: float | None
    peak_flops_per_second: float | None
    peak_source: str
    parameters: int | None
    hardware_flops_per_step: float | None = None
    mfu_convention: str | None = None
    notes: tuple[str, ...] = ()
    model: TrainedModel = field(default_factory=TrainedModel)
    #: What the run's calibration says about its collectives, or why there is none.
    links: Links = field(default_factory=dict)
    links_reason: str | None = None
    #: The ranks of each pipeline; empty where no schedule has more than one stage.
    pipelines: tuple[tuple[int, ...], ...] = ()
    #: Steps from one exchange of an outer loop to the next; 1 without one.
    round_steps: int = 1
    #: What the rules of the verdicts must know.
    setting: Setting = field(default_factory=Setting)
    #: Only steps from this one on count; None: from the last change of the configuration on.
    since: int | None = None
    #: So many of them settled and are left out; None: those that ranks did not measure.
    settling: int | None = None
    #: So many ranks have the same tokens, and tell in their steps how many; 0 where they tell of something else.
    ranks_alike: int = 0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Wall time of a step and what comes before it, the mean over ranks (``profilers/analysis/rounds.py``).

    ``mean`` is over the steps of whole rounds, so it is tokens per step over tokens per second; None if no round was
    measured. ``low`` and ``high`` bound it at 95 %, None with fewer than three rounds. Summaries written before there
    was a mean have None, and bounds of the median.
    """

    median: float
    p95: float
    low: float | None
    high: float | None
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """One operation on one axis, per step and rank. ``bus_bandwidth`` is in bytes per second.

    ``peak_bandwidth`` is the best that the calibration measured for the operation in groups of ``group_size``;
    ``peak_fraction`` is the bus bandwidth over it. ``expected_seconds`` is what as many calls of the mean size take
    by the calibration's fit. None without a calibration, or if calls went to groups of several sizes. A send or recv
    has none of these and no ``seconds``: ``RunSummary.message_seconds_reason``.

    ``wire_bytes`` is what the backend's algorithm sends for the payload ``bytes``, by formula and without the headers
    of TCP; None if the algorithm is not known.
    """

    axis: str
    operation: str
    calls: float
    bytes: float
    seconds: float | None
    exposed_seconds: float | None
    bus_bandwidth: float | None
    group_size: int | None = None
    peak_bandwidth: float | None = None
    peak_fraction: float | None = None
    expected_seconds: float | None = None
    wire_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One rank's peak, and the step and phase in which it was reached; the rest is the most that the CUDA allocator
    told, None on a CPU rank.
    """

    rank: int
    kind: str
    peak_bytes: int
    phase: str | None
    step: int
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    allocation_retries: int | None = None
    #: Of the GPU's memory that its processes hold this rank's part outside the allocator: CUDA context, NCCL's buffers.
    outside_allocator_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Seconds, bytes and joules are per step; None where nothing was recorded."""

    id: str
    layout: dict[str, int]
    world_size: int
    backend: str
    #: None of a foreign job, which may tell its tokens.
    parameters: int | None
    tokens_per_step: int | None
    #: What was trained; None of a foreign job, and in summaries from before there was anything but the decoder.
    workload: str | None = None
    #: How many more parameters there would be if layers shared none and embeddings were not tied.
    shared_parameters: int = 0
    #: The first recorded step; above 0 in a run that continues another.
    first_step: int = 0
    resumed: ResumeRow | None = None
    #: Of a run with a time: what it was given, and took to the end of its last loss on held-out text, or until somebody
    #: stopped it.
    budget_seconds: float | None = None
    budget_used_seconds: float | None = None
    budget_stopped: bool = False
    #: Parameters whose gradients compression leaves alone, and why.
    left_alone: dict[str, str] = field(default_factory=dict)
    #: Of compression, in order.
    plans: list[PlanRow] = field(default_factory=list)
    #: Of activations within a budget, by stage.
    memory_plans: list[MemoryPlanRow] = field(default_factory=list)
    #: None without an outer loop.
    outer: OuterRow | None = None
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    #: In order. Everything that is measured, peaks of memory too, is of the steps from the last one on.
    changes: list[ChangeRow] = field(default_factory=list)
    measured_from_step: int | None = None
    #: One per recorded step, measured or not: the mean over the ranks that know it.
    losses: list[float | None] = field(default_factory=list)
    validation_loss: float | None = None
    #: The same with as many stages left out as in training, where stages are left out.
    partial_loss: float | None = None
    #: What the model measures beside its loss: its name, and on held-out samples its mean; None without one.
    metric_name: str | None = None
    validation_metric: float | None = None
    #: Of a window of a live study: the baseline's after the same steps, from the same weights and on the same text.
    reference_loss: float | None = None
    #: Of the same windows: the steps that the run had done before, and its held-out loss then.
    steps_before: int | None = None
    loss_before: float | None = None
    #: Of a window of a live study: what the leader's step took right before and after it, over what it took when it was
    #: measured; the window's rate over that of the leader around it, with the ends of its 95 % interval; and the trial
    #: that led then. What loses something has the baseline on the same steps in the leader's place.
    leader_level: float | None = None
    leader_ratio: float | None = None
    leader_ratio_low: float | None = None
    leader_ratio_high: float | None = None
    leader_trial: int | None = None
    #: Every time that the loss on held-out text was taken, in order.
    quality: list[QualityRow] = field(default_factory=list)
    #: Of the whole model before clipping, one per recorded step.
    gradient_norms: list[float | None] = field(default_factory=list)
    measured_steps: int = 0
    #: Of these, the ones that every rank recorded in detail: phases, collectives and all that follows are of them.
    detailed_steps: int = 0
    step_seconds: StepSeconds | None = None
    #: Wall seconds of each measured step, and of each whole round: ``round_steps`` of them, one after the other.
    step_samples: list[float] = field(default_factory=list)
    round_steps: int = 1
    round_samples: list[float] = field(default_factory=list)
    #: Tokens over the wall time of whole rounds: plans of compression count, evaluation, checkpoints and orders do not.
    tokens_per_second: float | None = None
    tokens_per_second_interval: Bounds | None = None
    tokens_per_second_reason: str | None = None
    #: Tokens of all recorded steps over the seconds from the ranks' start to their last record: building the model,
    #: warm-up, evaluation, checkpoints and orders count.
    tokens_per_wall_second: float | None = None
    wall_seconds: float | None = None
    #: The seven phases of ``records.PHASES``, means over ranks and the detailed steps; empty without a measured step.
    phases: dict[str, float] = field(default_factory=dict)
    #: Mean seconds between two steps; with the phases they sum to the mean step.
    between_seconds: float | None = None
    #: Of the phase ``communication_exposed``: waits for ranks that came late to a collective, which verdicts count as
    #: straggler. What is left is what the calls cost by themselves. None in older files.
    late_rank_seconds: float | None = None
    #: Means over ranks and detailed steps: the phase ``communication_exposed`` by axis, and what was hidden behind
    #: computation. Waits for a pipeline's messages are in the phase ``bubble``.
    exposed_seconds_by_axis: dict[str, float] = field(default_factory=dict)
    hidden_seconds_by_axis: dict[str, float] = field(default_factory=dict)
    #: None where there is one stage, or its actions were not recorded.
    pipeline: PipelineRow | None = None
    #: One for each layer with experts.
    experts: list[ExpertRow] = field(default_factory=list)
    #: One for each of several tasks, in their order.
    tasks: list[TaskRow] = field(default_factory=list)
    #: One a rank, where experts lie elsewhere than in their slots; told at its end.
    expert_slots: list[ExpertSlotRow] = field(default_factory=list)
    #: Where ranks shared whole documents: groups and plans of the last 100 steps. Records have all.
    sequence_groups: list[SequenceGroupRow] = field(default_factory=list)
    sequence_plans: list[SequencePlanRow] = field(default_factory=list)
    #: One a rank, where batches are made ahead; told at its end.
    batches_ahead: list[PrefetchRow] = field(default_factory=list)
    #: By axis, where groups were given networks by where their members are.
    networks: list[NetworkRow] = field(default_factory=list)
    #: None where the whole model learned; told at the end of a run.
    adapted: AdapterRow | None = None
    #: Where parts of a network alone are trained, within a budget of bytes.
    update: UpdateRow | None = None
    #: Where steps train slices of layers, or take weight gradients from a sample of the tokens.
    partial_products: PartialProductsRow | None = None
    #: Where nothing named ran, the costliest first; of the steps whose spans were kept.
    gaps: list[GapRow] = field(default_factory=list)
    #: Steps at the start that were not measured, and those that step times show to be warm-up; None if not known.
    warmup_steps: int | None = None
    warmup_steps_found: int | None = None
    #: One a rank, where ranks have several clocks.
    clocks: list[ClockRow] = field(default_factory=list)
    communication: list[CommunicationRow] = field(default_factory=list)
    #: Why some or all rows have no measured peak; None if all have one.
    peak_bandwidth_reason: str | None = None
    #: Why rows of send and recv have neither seconds nor a bandwidth; None if there are none.
    message_seconds_reason: str | None = None
    hidden_communication_seconds: float | None = None
    #: Sent by a rank: by the formulas of ``profilers/collectives/wire_bytes.py``; as interfaces counted it, without
    #: headers; and why one of the two is missing.
    wire_bytes_per_step: float | None = None
    wire_bytes_measured: float | None = None
    wire_bytes_reason: str | None = None
    #: The largest peak of a rank, that rank, and what it did then.
    peak_memory_bytes: int | None = None
    peak_memory_phase: str | None = None
    peak_memory_rank: int | None = None
    memory: list[MemoryRow] = field(default_factory=list)
    #: FLOPs of all ranks without and with recomputation, and what they count.
    model_flops_per_step: float | None = None
    hardware_flops_per_step: float | None = None
    mfu_convention: str | None = None
    model_flops_per_second: float | None = None
    #: Dense peak FLOP/s of one device, and its source or the reason why there is none.
    peak_flops: float | None = None
    peak_source: str | None = None
    #: Model FLOP/s over the peak of all devices, and how it was taken or the reason why there is none.
    mfu: float | None = None
    mfu_reason: str | None = None
    #: The same of hardware FLOP/s.
    hfu: float | None = None
    #: Of the GPUs that ranks compute on; and why it is not known.
    joules_per_step: float | None = None
    joules_reason: str | None = None
    #: One for each GPU that the driver shows, the run's or not; and the reason why there is none.
    gpus: list[GpuRow] = field(default_factory=list)
    gpus_reason: str | None = None
    #: One for each host that was sampled, that of rank 0 first.
    hosts: list[HostRow] = field(default_factory=list)
    #: One for each interface that only the ranks use; a run in the lab has them.
    interfaces: list[InterfaceRow] = field(default_factory=list)
    cpu_seconds_per_step: float | None = None
    #: Forward, backward and optimizer of the busiest rank minus those of the least busy one, of a mean step.
    rank_skew_seconds: float | None = None
    slowest_rank: int | None = None
    #: Its host, and the share of steps in which it is the busiest; None with one rank.
    slowest_rank_host: str | None = None
    slowest_rank_share: float | None = None
    #: Whether the same ranks are behind, another one each time, or one now and then; None with one rank.
    skew: SkewRow | None = None
    #: Environment variables that the run asked for, and whether they took effect.
    environment: list[EnvironmentRow] = field(default_factory=list)
    dropped_records: int = 0
    #: What a reader of these numbers should know about the configuration, in words.
    notes: list[str] = field(default_factory=list)
    #: What every rule found, whatever its threshold; and those above theirs.
    findings: list[Verdict] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    #: What held for a part of the measured steps only.
    episodes: list[Episode] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSummary:
        """The reverse of ``as_dict``; ignores unknown keys. ValueError if a value does not fit."""
        return msgspec.convert(dict(data), cls, str_keys=True)  # as JSON has all keys
