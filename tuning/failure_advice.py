"""What to change when trials fail, by their ending and by what the study's settings leave room for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.config.lossy import is_lossy

#: All values of a run under their dotted keys.
Values = dict[str, Any]


def advice(outcome: str, failed: Sequence[Values]) -> list[str]:
    """What to try after trials that ended so, the first thing first; each fits at least one of their settings."""
    return list(_ADVICE.get(outcome, _nothing)(failed)) if failed else []


def _memory(failed: Sequence[Values]) -> list[str]:
    found = []
    sizes = [values["batch.micro_batch"] for values in failed]
    if min(sizes) > 1:
        found.append(f"fewer sequences at once (batch.micro_batch, {min(sizes)} at the least here)")
    if all(values["memory.recompute"] == "none" for values in failed):
        found.append("recomputation (memory.recompute=full)")
    shared = [values for values in failed if values["parallel.dp"] > 1]
    if shared and all(values["parallel.zero_stage"] < 3 for values in shared):
        found.append("ZeRO (parallel.zero_stage=3)")
    limits = {values["memory.limit_gib"] for values in failed} - {None}
    if limits:
        found.append(f"a higher limit (memory.limit_gib, {min(limits):g} here)")
    return [*found, "a smaller model or shorter sequences (model, data.sequence_length)"]


def _diverged(failed: Sequence[Values]) -> list[str]:
    rate = min(values["train.learning_rate"] for values in failed)
    found = [f"a lower learning rate (train.learning_rate, {rate:g} here)"]
    if all(values["train.clip_norm"] is None for values in failed):
        found.append("clipping of gradients (train.clip_norm=1.0)")
    if all(is_lossy(values) for values in failed):
        found.append("weaker compression, or none (compression.method)")
    if all(values["precision"] != "fp32" for values in failed):
        found.append("fp32 (precision)")
    return [*found, "other data: text of one letter teaches nothing (data.path)"]


def _slow(failed: Sequence[Values]) -> list[str]:
    seconds = max(values["train.timeout_seconds"] for values in failed)
    steps = max(values["train.steps"] for values in failed)
    return [
        f"more time (train.timeout_seconds, {seconds:g} here)",
        f"fewer steps (train.steps, {steps} here)",
    ]


def _hang(failed: Sequence[Values]) -> list[str]:
    seconds = max(values["train.step_timeout_seconds"] for values in failed)
    return [
        f"more patience if steps are slow here (train.step_timeout_seconds, {seconds:g} here)",
        "a look at the rank that is named, and at its log",
    ]


def _connections(failed: Sequence[Values]) -> list[str]:
    return ["a look at the network between the ranks (`workbench doctor`)"]


def _crash(failed: Sequence[Values]) -> list[str]:
    return ["a look at the last lines of the rank's log (`workbench show RUN`)"]


def _rules(failed: Sequence[Values]) -> list[str]:
    return ["degrees and sizes that divide each other, as the reason says"]


def _nothing(failed: Sequence[Values]) -> list[str]:
    return []


_ADVICE: dict[str, Callable[[Sequence[Values]], list[str]]] = {
    "oom": _memory,
    "predicted_oom": _memory,
    "diverged": _diverged,
    "timed_out": _slow,
    "hang": _hang,
    "comm_error": _connections,
    "crashed": _crash,
    "illegal": _rules,
}
