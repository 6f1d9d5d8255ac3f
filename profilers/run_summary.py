"""What a run amounts to: the numbers that ``show``, the tuner and the pages rely on, with stable keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from profilers.diagnosis import Verdict


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
    tokens_per_step: int
    model_flops_per_step: float | None
    peak_flops_per_second: float | None
    peak_source: str
    parameters: int
    hardware_flops_per_step: float | None = None
    mfu_convention: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Step time; ``low`` and ``high`` bound the median at 95 %, None with fewer than three measured steps."""

    median: float
    p95: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """One operation on one axis, per step and rank. ``bus_bandwidth`` is in bytes per second."""

    axis: str
    operation: str
    calls: float
    bytes: float
    seconds: float | None
    exposed_seconds: float | None
    bus_bandwidth: float | None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One save: ``step`` is the next one to do after it, ``paused_seconds`` the time that training waited for it,
    ``problem`` why it failed.
    """

    step: int
    seconds: float
    paused_seconds: float
    asynchronous: bool
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run and step that a run continued from, and the keys that decide a step and differ: [then, now]."""

    run: str
    step: int
    folder: str
    seconds: float
    changed: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Seconds, bytes and joules are per step; None where nothing was recorded."""

    id: str
    layout: dict[str, int]
    world_size: int
    backend: str
    parameters: int
    tokens_per_step: int
    #: The first recorded step; above 0 in a run that continues another.
    first_step: int = 0
    resumed: Resumed | None = None
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    #: One per recorded step, measured or not: the mean over the ranks that know it.
    losses: list[float | None] = field(default_factory=list)
    validation_loss: float | None = None
    #: Of the whole model before clipping, one per recorded step.
    gradient_norms: list[float | None] = field(default_factory=list)
    measured_steps: int = 0
    step_seconds: StepSeconds | None = None
    #: The slowest rank's seconds of each measured step.
    step_samples: list[float] = field(default_factory=list)
    tokens_per_second: float | None = None
    tokens_per_second_interval: Bounds | None = None
    #: The seven phases of ``records.PHASES``; empty without a measured step.
    phases: dict[str, float] = field(default_factory=dict)
    communication: list[CommunicationRow] = field(default_factory=list)
    hidden_communication_seconds: float | None = None
    wire_bytes_per_step: float | None = None
    wire_bytes_reason: str | None = None
    peak_memory_bytes: int | None = None
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
    joules_per_step: float | None = None
    cpu_seconds_per_step: float | None = None
    #: Busiest minus least busy rank, by medians; busy is the step without exposed communication and bubble.
    rank_skew_seconds: float | None = None
    slowest_rank: int | None = None
    dropped_records: int = 0
    #: What a reader of these numbers should know about the configuration, in words.
    notes: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSummary:
        """The reverse of ``as_dict``; ignores unknown keys. ValueError if a value does not fit."""
        return msgspec.convert(dict(data), cls)
