"""A run's summary as values of every objective, and the part of its memory that stayed free. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.config.errors import several
from profilers.model.run_summary import MemoryRow, RunSummary
from tuning.spec.objectives import KNOWN, Aim, MeasuredValue, Measures

MEMORY_HEADROOM = "memory_headroom"
_HOUR_SECONDS = 3600.0
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Measure:
    """Kept as its aim keeps values: larger is better. A run gives a single value, or one for each whole round."""

    value: float
    low: float | None
    high: float | None
    samples: list[float]


def measure(summary: RunSummary, aim: Aim) -> Measure | None:
    """What a run measured of an aim; None if it did not."""
    if aim.objective.single:
        natural = _single(summary, aim)
        return None if not natural else Measure(aim.to_stored(natural), None, None, [aim.to_stored(natural)])
    if aim.name == "step_seconds" and summary.tokens_per_step is None:
        return _of_steps(summary, aim)
    scale = _scale(summary, aim)
    if not scale or not summary.tokens_per_second or summary.tokens_per_step is None:
        return None
    bounds = summary.tokens_per_second_interval
    return Measure(
        value=summary.tokens_per_second * scale,
        low=bounds.low * scale if bounds else None,
        high=bounds.high * scale if bounds else None,
        samples=[
            summary.tokens_per_step * summary.round_steps / seconds * scale
            for seconds in _rounds(summary)
            if seconds > 0
        ],
    )


def _of_steps(summary: RunSummary, aim: Aim) -> Measure | None:
    """By the clock alone, of a trainer that told of no tokens."""
    interval = summary.step_seconds
    if interval is None or not interval.mean:
        return None
    low, high = (aim.to_stored(end) if end else None for end in (interval.high, interval.low))
    return Measure(
        aim.to_stored(interval.mean),
        low,
        high,
        [aim.to_stored(seconds) for seconds in _rounds(summary) if seconds > 0],
    )


def _rounds(summary: RunSummary) -> list[float]:
    """Seconds of each whole round; summaries written before rounds were known have steps only."""
    return summary.round_samples or (summary.step_samples if summary.round_steps == 1 else [])


def measures(summary: RunSummary, aim: Aim, limit_gib: float | None) -> Measures:
    """Every objective in the unit of its name, with its interval, or the reason why it is not known; and the part of
    memory that stayed free. ``aim`` has what the study knows beside the run: the loss to reach, the price.
    """
    aims = [Aim(name, aim.target_loss, aim.currency, aim.per_gpu_hour) for name in KNOWN]
    values = {aim.name: _in_unit(measure(summary, aim), aim, _reason(summary, aim)) for aim in aims}
    free = headroom(summary, limit_gib)
    reason = "" if free is not None else "the memory of ranks, or what they have of it, was not recorded"
    return values | {MEMORY_HEADROOM: MeasuredValue(free, reason=reason)}


def _in_unit(measured: Measure | None, aim: Aim, reason: str) -> MeasuredValue:
    """A measure in the unit of its objective's name."""
    if measured is None:
        return MeasuredValue(reason=reason)
    ends = aim.natural(measured.low), aim.natural(measured.high)
    low, high = ends[::-1] if aim.objective.lower else ends
    return MeasuredValue(aim.natural(measured.value), low, high)


def headroom(summary: RunSummary, limit_gib: float | None) -> float | None:
    """The part of its memory that the fullest rank had free at its peak; None if it is not known of every rank.

    A rank on a GPU has all of that GPU's memory, of which its CUDA context and NCCL's buffers are no less taken where
    NVML tells of them; one on a CPU its limit, or an equal share of its host's.
    """
    free = [_free(row, _capacity(row, summary, limit_gib)) for row in summary.memory]
    bytes_free = [bytes_ for bytes_ in free if bytes_ is not None]
    return min(bytes_free) if bytes_free and len(bytes_free) == len(free) == summary.world_size else None


def free_bytes(summary: RunSummary, limit_gib: float | None) -> float | None:
    """Of the fullest rank at its peak; None if it is not known of every rank."""
    both = [(row, _capacity(row, summary, limit_gib)) for row in summary.memory]
    if not both or any(capacity is None for _, capacity in both):
        return None
    return min(
        (capacity or 0.0) - row.peak_bytes - (row.outside_allocator_bytes or 0) for row, capacity in both
    )


def _free(row: MemoryRow, capacity: float | None) -> float | None:
    used_bytes = row.peak_bytes + (row.outside_allocator_bytes or 0)
    return 1 - used_bytes / capacity if capacity else None


def _capacity(row: MemoryRow, summary: RunSummary, limit_gib: float | None) -> float | None:
    if row.kind == "CUDA allocator":
        return _first(gpu.memory_total_bytes for gpu in summary.gpus if row.rank in (gpu.ranks or ()))
    if limit_gib is not None:
        return limit_gib * _GIB
    hosts = [host for host in summary.hosts if row.rank in host.ranks and host.memory_total_bytes]
    return _first(float(host.memory_total_bytes or 0) / len(host.ranks) for host in hosts)


def _first(values: Iterable[float | None]) -> float | None:
    return next(iter(values), None)


def _single(summary: RunSummary, aim: Aim) -> float | None:
    if aim.name == "peak_memory_bytes":
        return summary.peak_memory_bytes
    if aim.name == "loss_at_seconds":
        return summary.validation_loss if is_on_time(summary) else None
    if summary.joules_per_step is None or summary.tokens_per_step is None:
        return None
    return summary.joules_per_step / summary.tokens_per_step


#: A run may miss its time by this part of it and a step, as busy machines have it.
_MISSED = 0.1


def is_on_time(summary: RunSummary) -> bool:
    """Whether a run had a time and ended about then, in whole rounds of an outer loop. One of which fewer than three
    steps fit takes longer, and its loss is that of another time; so is that of one that was stopped.
    """
    budget, used = summary.budget_seconds, summary.budget_used_seconds
    if budget is None or used is None or summary.budget_stopped:
        return False
    rounds = summary.outer.rounds if summary.outer is not None else 0
    unit = max(summary.step_samples, default=0.0) * (len(summary.losses) / rounds if rounds else 1)
    return abs(used - budget) <= _MISSED * budget + unit


def _scale(summary: RunSummary, aim: Aim) -> float | None:
    """What tokens per second are multiplied with; None if that is not known.

    The steps to a loss are what they are: how sure the time of one is decides how sure the time to the loss is.
    """
    if not summary.tokens_per_second or summary.tokens_per_step is None:
        return None
    if aim.name == "step_seconds":
        return aim.objective.numerator / summary.tokens_per_step
    if aim.name == "mfu":
        return None if summary.mfu is None else summary.mfu / summary.tokens_per_second
    if aim.name == "money_per_billion_tokens":
        hourly = (aim.per_gpu_hour or 0.0) * summary.world_size
        return _HOUR_SECONDS / hourly if hourly else None
    if aim.name == "time_to_loss":
        seconds = seconds_to_loss(summary, aim.target_loss)
        return None if seconds is None else aim.to_stored(seconds) / summary.tokens_per_second
    return 1.0


def _reason_of_time(summary: RunSummary) -> str:
    budget, used = summary.budget_seconds, summary.budget_used_seconds
    if budget is None or used is None:
        return "the run was given no time (train.seconds)"
    if summary.budget_stopped:
        return f"it was stopped after {used:.3g} s of {budget:g}"
    if not is_on_time(summary):
        steps = several(len(summary.losses), "steps")
        return f"its {steps} took {used:.3g} s instead of {budget:g}: give trials more time or smaller steps"
    return "it took no loss on held-out text"


def seconds_to_loss(summary: RunSummary, target: float | None) -> float | None:
    """Seconds of training until the loss on held-out text was at most ``target``; None if it never was."""
    if target is None:
        return None
    return _first(row.seconds for row in summary.quality if row.loss <= target and row.seconds > 0)


def _reason(summary: RunSummary, aim: Aim) -> str:
    reasons = {
        "mfu": summary.mfu_reason or "it was not recorded",
        "joules_per_token": summary.joules_reason or "it was not recorded",
        "money_per_billion_tokens": None if aim.per_gpu_hour else "the study has no price",
        "peak_memory_bytes": "no rank recorded its memory",
        "time_to_loss": f"a loss of {aim.target_loss:g} was not reached"
        if aim.target_loss
        else "the study has no target loss",
        "loss_at_seconds": _reason_of_time(summary),
    }
    return reasons.get(aim.name) or summary.tokens_per_second_reason or "no step was measured"
