"""Checks of parallelism: every axis, and every schedule of a pipeline, against one process."""

from __future__ import annotations

import math
from typing import Any, get_args

from engine.config.run_config import RunConfig
from engine.config.sections import Parallel
from engine.config.validation.rules import problems
from engine.schedules.registry import SCHEDULES
from engine.session import Session
from profilers.model.run_summary import RunSummary
from workbench.selftest.check_context import CheckContext
from workbench.selftest.results import Number, Verdict, make_failure, verdict_of

#: Layers enough for two stages on each of eight ranks, heads enough to be split over them.
SIZES: dict[str, Any] = {
    "model.layers": 16,
    "model.hidden": 32,
    "model.heads": 8,
    "model.kv_heads": 8,
    "model.ffn_hidden": 64,
}
#: Gradients of the whole model would fit one bucket of the usual size: each has to be averaged, not only the first.
BUCKETS: dict[str, Any] = {"overlap.bucket_mb": 0.1}
EXPERTS: dict[str, Any] = {"model.experts": 8, "model.expert_ffn_hidden": 32}
ZERO_STAGES = (1, 2, 3)
#: A GPU's kernels add in another order where matrices have another shape.
TOLERANCE_NATS = {"cpu": 1e-5, "cuda": 1e-4}
NORM_TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}

Layouts = dict[str, dict[str, Any]]


def data(ranks: int) -> Layouts:
    """Data parallelism, with what it shards, also in groups of two where there are more."""
    plain = BUCKETS | {"parallel.dp": ranks}
    layouts: Layouts = {"dp": plain}
    for stage in ZERO_STAGES:
        layouts[f"zero_{stage}"] = plain | {"parallel.zero_stage": stage}
    if ranks > 2:
        layouts["hsdp"] = layouts["zero_3"] | {"parallel.shard_ranks": 2}
    return layouts


def tensor(ranks: int) -> Layouts:
    """Tensor parallelism: plain, in less memory, and with its messages in parts."""
    plain = {"parallel.tp": ranks}
    return {
        "tp": plain,
        "tp_regather": plain | {"parallel.tp_regather": True},
        "tp_chunks": plain | {"overlap.tp_chunks": 2},
    }


def context(ranks: int) -> Layouts:
    """Every way to split sequences."""
    methods = get_args(Parallel.model_fields["cp_method"].annotation)
    return {f"cp_{method}": {"parallel.cp": ranks, "parallel.cp_method": method} for method in methods}


def expert(ranks: int) -> Layouts:
    """Experts on different ranks. The balancing loss is taken over a micro-batch: one that is the whole batch."""
    values = BUCKETS | {"parallel.dp": ranks, "batch.micro_batch": 8 // ranks}
    return {"ep": values | {"parallel.ep": ranks} | EXPERTS}


def pipeline(ranks: int) -> Layouts:
    """Every kind of schedule, with as many stages a rank as its entry shows it with."""
    layered_model = _deep(ranks)
    return {
        f"pp_{kind}": layered_model
        | {"parallel.pp": ranks, "schedule.kind": kind, "schedule.chunks": facts.shown_chunks}
        for kind, facts in SCHEDULES.items()
    }


def _deep(ranks: int) -> dict[str, Any]:
    """Layers enough for a stage each of the schedule that has most; nothing where the usual ones are."""
    stages = ranks * max(kind.shown_chunks for kind in SCHEDULES.values())
    return {"model.layers": stages} if stages > SIZES["model.layers"] else {}


def exact_data(bench: CheckContext) -> Verdict:
    """Plain, ZeRO 1, 2 and 3."""
    return exact(bench, data(bench.ranks), {})


def exact_tensor(bench: CheckContext) -> Verdict:
    """Tensor parallelism."""
    return exact(bench, tensor(bench.ranks), {})


def exact_context(bench: CheckContext) -> Verdict:
    """Ring and Ulysses."""
    return exact(bench, context(bench.ranks), {})


def exact_expert(bench: CheckContext) -> Verdict:
    """A mixture of experts."""
    return exact(bench, expert(bench.ranks), EXPERTS | {"batch.micro_batch": 8})


def exact_pipeline(bench: CheckContext) -> Verdict:
    """All schedules."""
    return exact(bench, pipeline(bench.ranks), _deep(bench.ranks))


def exact(bench: CheckContext, layouts: Layouts, single_rank_settings: dict[str, Any]) -> Verdict:
    """Losses and gradient norms of three steps of each layout against those of one process on the same device."""
    mismatches: list[str] = []
    measured: dict[str, Number] = {}
    with bench.session() as session:
        single = bench.config(SIZES | single_rank_settings, bench.ranks)
        outcome, reference = bench.run(session, single, "one-process")
        if not outcome.good:
            return make_failure(f"one process ended {outcome.ending.value}: {outcome.reason}")
        for name, values in layouts.items():
            problem, difference = _compare(bench, session, name, values, reference)
            measured[f"{name}_loss_difference_nats"] = difference
            mismatches += [problem] if problem else []
    return verdict_of(
        mismatches, f"{', '.join(layouts)} equal one process ({bench.describe_backend(single)})", measured
    )


def _compare(
    bench: CheckContext, session: Session, name: str, values: dict[str, Any], reference: RunSummary
) -> tuple[str | None, float | None]:
    config = bench.config(SIZES | values)
    problem = next(iter(problems(config)), None)
    if problem is not None:
        return f"{name} is refused: {problem}", None
    outcome, summary = bench.run(session, config, name)
    if not outcome.good:
        return f"{name} ended {outcome.ending.value}: {outcome.reason}", None
    return _differs(name, config, summary, reference), largest_difference(summary.losses, reference.losses)


def _differs(name: str, config: RunConfig, summary: RunSummary, reference: RunSummary) -> str | None:
    device = config.device
    losses = largest_difference(summary.losses, reference.losses)
    if not losses <= TOLERANCE_NATS[device]:
        return f"{name}: losses differ by {losses:.1e}, more than {TOLERANCE_NATS[device]:g}"
    largest = max((norm or 0.0 for norm in reference.gradient_norms), default=0.0)
    norms = largest_difference(summary.gradient_norms, reference.gradient_norms)
    if not norms <= NORM_TOLERANCE[device] * largest:
        return f"{name}: gradient norms differ by {norms:.1e}"
    return None


def largest_difference(losses: list[float | None], reference: list[float | None]) -> float:
    """Of numbers step by step; infinite where one is missing or no number."""
    if not losses or len(losses) != len(reference):
        return math.inf
    pairs = zip(losses, reference, strict=True)
    differences = [math.inf if a is None or b is None else abs(a - b) for a, b in pairs]
    return max(math.inf if math.isnan(difference) else difference for difference in differences)
