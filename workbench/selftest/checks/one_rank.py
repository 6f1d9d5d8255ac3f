"""Checks of one rank: kernels on a GPU against the CPU's, and settings that save memory and may change no loss."""

from __future__ import annotations

from typing import Any

from engine.schedules.registry import SCHEDULES
from engine.session import Session
from profilers.model.run_summary import RunSummary
from workbench.selftest.check_context import CheckContext
from workbench.selftest.checks.layouts import EXPERTS, SIZES, TOLERANCE_NATS, largest_difference
from workbench.selftest.results import Number, Verdict, make_failure, verdict_of

_ROUNDING_NATS = 0.05
KERNELS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "zero_3": {"parallel.zero_stage": 3},
    "experts": EXPERTS,
    "experts_with_capacity": EXPERTS | {"model.capacity_factor": 1.25},
}
_SMALL = SIZES | {"model.layers": 4}
#: What may change no loss on one rank, beside ``stages``.
SAVINGS: dict[str, dict[str, Any]] = {
    "recompute_full": {"memory.recompute": "full"},
    "recompute_selective": {"memory.recompute": "selective"},
    "offload_activations": {"memory.recompute": "full", "memory.offload": "activations"},
    "offload_optimizer": {"memory.offload": "optimizer"},
    "zero_3": {"parallel.zero_stage": 3},
}


def stages() -> dict[str, dict[str, Any]]:
    """Every schedule that gives a rank several stages; with one stage on one rank all of them are the same."""
    return {
        name: {"schedule.kind": name, "schedule.chunks": facts.shown_chunks}
        for name, facts in SCHEDULES.items()
        if facts.shown_chunks > 1
    }


def gpu_kernels(bench: CheckContext) -> Verdict:
    """Three steps on a GPU and on the CPU; bf16 only within what rounding does."""
    problems: list[str] = []
    measured: dict[str, Number] = {}
    with bench.session() as session:
        for name, values in KERNELS.items():
            problem, difference = _beside_cpu(bench, session, name, values, TOLERANCE_NATS["cuda"])
            measured[f"{name}_loss_difference_nats"] = difference
            problems += problem
        bf16 = {"precision": "bf16"}
        problem, difference = _beside_cpu(bench, session, "bf16", bf16, _ROUNDING_NATS)
        measured["bf16_loss_difference_nats"] = difference
    return verdict_of(problems + problem, "one GPU computes what the CPU does", measured)


def _beside_cpu(
    bench: CheckContext, session: Session, name: str, values: dict[str, Any], tolerance: float
) -> tuple[list[str], float | None]:
    summaries: dict[str, RunSummary] = {}
    for device in ("cpu", "cuda"):
        config = bench.config(values | {"device": device})
        outcome, summaries[device] = bench.run(session, config, f"{name}-{device}")
        if not outcome.good:
            return [f"{name} on {device} ended {outcome.ending.value}: {outcome.reason}"], None
    difference = largest_difference(summaries["cuda"].losses, summaries["cpu"].losses)
    if difference <= tolerance:
        return [], difference
    return [f"{name}: losses differ by {difference:.1e} from the CPU's"], difference


def memory_savings(bench: CheckContext) -> Verdict:
    """Each against the plain run, on the same device; peaks are told, and on a GPU compared."""
    problems: list[str] = []
    settings = SAVINGS | stages()
    with bench.session() as session:
        plain_config = bench.config(_SMALL)
        outcome, plain = bench.run(session, plain_config, "plain")
        if not outcome.good:
            return make_failure(f"the plain run ended {outcome.ending.value}: {outcome.reason}")
        measured: dict[str, Number] = {"plain_peak_bytes": plain.peak_memory_bytes}
        for name, values in settings.items():
            outcome, summary = bench.run(session, bench.config(_SMALL | values), name)
            measured[f"{name}_peak_bytes"] = summary.peak_memory_bytes
            difference = largest_difference(summary.losses, plain.losses)
            if not outcome.good:
                problems.append(f"{name} ended {outcome.ending.value}: {outcome.reason}")
            elif difference > TOLERANCE_NATS[plain_config.device]:
                problems.append(f"{name} changes the loss by {difference:.1e}")
    backend = bench.describe_backend(plain_config)
    return verdict_of(
        problems + _no_peaks(measured), f"{len(settings)} settings change no loss ({backend})", measured
    )


def _no_peaks(measured: dict[str, Number]) -> list[str]:
    missing = [name.removesuffix("_peak_bytes") for name, peak in measured.items() if not peak]
    return [f"no memory peak was reported for {', '.join(missing)}"] if missing else []
