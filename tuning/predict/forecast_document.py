"""A prediction as an answer: ranges, limits in words, what would change it, and the JSON that others rely on. Pure.

What the closed forms leave out of a configuration is said beside each answer, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from engine.config import environment
from engine.config.errors import value_text
from engine.config.formulas.learning import OPTIMIZERS
from engine.config.knobs.catalogue import KNOBS, default_of
from engine.config.layout import layout_of
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.footprint.device_overhead import DeviceOverhead
from engine.footprint.flops import CONVENTION
from engine.footprint.footprint import Footprint
from engine.schedules.registry import SCHEDULES
from tuning.predict.model import headroom
from tuning.predict.target import Target

#: What each term of a breakdown is, as people read it.
WORDS: Mapping[str, str] = {
    "products": "matrix products",
    "attention": "attention",
    "elements": "element by element work",
    "launches": "launches of small kernels",
    "recomputation": "recomputation",
    "head": "logits and loss",
    "tensor_parallel": "messages of tp",
    "context_parallel": "messages of cp",
    "messages": "messages of the pipeline",
    "bubble": "the pipeline's bubble",
    "data_parallel": "gradients and gathers of dp",
    "optimizer": "the optimizer",
    "other": "the rest of a step",
}
#: A term below this share limits nothing.
_LIMITS = 0.05
#: Share of measurements that a range is to hold.
INTERVAL = 0.9
LAB_LEFT_OUT = "lab: links are those of the cluster, not of the lab"


class Range(NamedTuple):
    """The middle, and the ends of 90 %."""

    median: float
    low: float
    high: float


class Limit(NamedTuple):
    """A term of the breakdown, its share of the step, and both in words."""

    name: str
    share: float
    words: str


@dataclass(frozen=True, slots=True)
class Change:
    """Keys with other values, the step with them, and what is gained (0.1: 10 % more tokens a second)."""

    values: Mapping[str, Any]
    step_seconds: float
    gain: float
    memory_bytes: float
    out_of_memory_probability: float
    lossy: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction. ``breakdown`` in seconds adds up to the median step; ``changes`` are empty unless asked for.

    ``footprint`` is of the rank that holds most, ``outside`` what torch's allocator does not count of a GPU, which
    ``memory_bytes`` have in them; ``mfu`` is a fraction of ``peak_flops``, those of one device.
    """

    config: RunConfig
    target: Target
    step_seconds: Range
    memory_bytes: Range
    out_of_memory_probability: float
    breakdown: Mapping[str, float]
    tokens_per_second: float
    mfu: float
    peak_flops: float
    footprint: Footprint
    outside: DeviceOverhead
    notes: tuple[str, ...]
    changes: tuple[Change, ...] = ()

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What takes the step's time, most first."""
        return limits(self.breakdown)

    @property
    def fits(self) -> bool:
        """Whether it is safe: it hardly ever runs out of memory."""
        return self.out_of_memory_probability <= headroom.SAFE

    def as_dict(self) -> dict[str, Any]:
        """Plain values: seconds, bytes and fractions."""
        layout = layout_of(self.config)
        return {
            "layout": layout.as_dict(),
            "world_size": layout.world_size,
            "cluster": cluster(self.target),
            "step_seconds": self.step_seconds._asdict(),
            "memory_bytes": self.memory_bytes._asdict(),
            "interval": INTERVAL,
            "breakdown": dict(self.breakdown),
            "limits": [limit._asdict() for limit in self.limits],
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "mfu_convention": CONVENTION,
            "peak_flops": self.peak_flops,
            "memory_limit_bytes": self.target.memory_bytes,
            "memory_breakdown": memory_parts(self),
            "outside_allocator_bytes": self.outside.as_dict(),
            "out_of_memory_probability": self.out_of_memory_probability,
            "changes": [asdict(change) for change in self.changes],
            "notes": list(self.notes),
            "experience": self.target.experience and self.target.experience.as_dict(),
            "sources": self.target.sources(),
        }


def limits(breakdown: Mapping[str, float]) -> tuple[Limit, ...]:
    """Terms of at least 5 % of a step, most first."""
    whole = sum(breakdown.values())
    shares = sorted(((seconds / whole, name) for name, seconds in breakdown.items()), reverse=True)
    return tuple(
        Limit(name, share, f"{WORDS[name]}: {percent(share)} of the step")
        for share, name in shares
        if share >= _LIMITS
    )


def percent(fraction: float) -> str:
    """As people read it: 14 %."""
    return f"{100 * fraction:.0f} %"


def cluster(target: Target) -> dict[str, Any]:
    """What is predicted for."""
    return {
        "name": target.cluster.name,
        "devices": target.cluster.size,
        "devices_per_node": target.devices_per_node,
        "accelerator": target.group.accelerator.name,
    }


def memory_parts(forecast: Forecast) -> dict[str, float]:
    """Bytes of the median by what they are for."""
    held_footprint = forecast.footprint
    return {
        "parameters": held_footprint.parameter_bytes,
        "gradients": held_footprint.gradient_bytes,
        "optimizer": held_footprint.optimizer_bytes,
        "activations": held_footprint.activation_bytes,
        "buffers": held_footprint.buffer_bytes,
        "allowance": forecast.memory_bytes.median - held_footprint.total_bytes - forecast.outside.likely,
        "outside_allocator": forecast.outside.likely,
    }


def notes(config: RunConfig, lab_known: bool = False) -> list[str]:
    """A line for each setting whose time is not modelled; ``lab_known``: its links are those of the lab."""
    workload = config.model.workload
    remarks = {f"model.workload={workload}: formulas know the decoder alone": not is_decoder(config.model)}
    for key, knob in KNOBS.items():
        if knob.not_predicted:
            value = config.value_of(key)
            named = key if isinstance(value, list) else f"{key}={value_text(value)}"
            remarks[f"{named}: {knob.not_predicted}"] = value != default_of(key)
    variables = ", ".join(environment.requested_settings(config.environment))
    remarks[f"environment: what {variables} changes is not modelled"] = bool(variables)
    remarks |= _by_value(config)
    remarks[LAB_LEFT_OUT] = config.lab.is_wanted and not lab_known
    return [line for line, applies in remarks.items() if applies]


def _by_value(config: RunConfig) -> dict[str, bool]:
    """What is left out of some of a setting's values alone."""
    parallel, kind, optimizer = config.parallel, config.schedule.kind, config.train.optimizer
    documents = config.data.documents
    return {
        f"parallel.shard_ranks={parallel.shard_ranks}: slices are taken to be spread over all of dp": (
            parallel.shard_ranks is not None and parallel.shard_ranks != layout_of(config).data
        ),
        f"schedule.kind={kind}: what ZeRO 2 gathers less often is not counted": (
            SCHEDULES[kind].chunk_by_chunk and parallel.zero_stage == 2 and parallel.reduce_every_micro_batch
        ),
        "data.documents=masked: attention is taken to be over whole sequences": documents == "masked",
        "data.documents=whole: every rank is taken to have micro_batch x sequence_length tokens; groups are predicted "
        "by the run itself, from what it measures at its start": documents == "whole",
        "train.optimizer=muon: its products are not counted, and its state as AdamW's": optimizer == "muon",
        f"train.optimizer={optimizer}: its sums over ranks are not counted": OPTIMIZERS[optimizer].whole_sums,
    }
