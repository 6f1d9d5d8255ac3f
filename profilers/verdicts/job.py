"""What to do about a verdict in a job that is not ours: its settings have names that we do not know. Pure."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from profilers.model.run_summary import RunSummary
from profilers.model.verdict import Verdict
from profilers.records import operations

#: By the beginning of a verdict's name; the longest that fits counts. Entries of operations say more of some.
_ADVICE = {
    "input_bound": "load data in more worker processes, further ahead, or from a faster disk",
    "host_bound": "do more per operation with a larger micro-batch or a compiled model, and look at what runs between "
    "steps: logging, metrics, losses that are read back",
    "straggler": "check the clocks of that rank's host and what else runs there; a larger micro-batch evens out random "
    "delays",
    "exposed": "a layout with less traffic on this axis, or overlap with computation",
    "memory_pressure": "a smaller micro-batch, recomputed activations, or parameters that are sharded further",
    "clock_cap": "cool the GPU, or raise its power limit",
    "compute_bound": "fine as it is; what computes is the limit",
}

#: What notes and reasons say of settings that a job does not have.
_BUDGET = ("profile.budget is", "the most that it may is")
_REMEDY = "; set it to null to record all"
_LAB = "; a run in the lab (lab.hosts) has them"


def generalize_advice(summary: RunSummary) -> RunSummary:
    """The summary with advice that does not speak of this project's settings."""
    return replace(
        summary,
        notes=[note.replace(*_BUDGET).removesuffix(_REMEDY) for note in summary.notes],
        wire_bytes_reason=summary.wire_bytes_reason and summary.wire_bytes_reason.removesuffix(_LAB),
        findings=[_neutral(finding) for finding in summary.findings],
        verdicts=[_neutral(verdict) for verdict in summary.verdicts],
        episodes=[replace(episode, verdict=_neutral(episode.verdict)) for episode in summary.episodes],
    )


def _neutral(verdict: Verdict) -> Verdict:
    advice = [
        operation.foreign_advice
        for operation in operations.OPERATIONS
        if verdict.name == f"exposed_{operation.verdict}"
    ]
    fitting = [name for name in _ADVICE if verdict.name.startswith(name)]
    general = _ADVICE[max(fitting, key=len)] if fitting else ""
    return structs.replace(verdict, advice=next(filter(None, advice), general), knobs=[])
