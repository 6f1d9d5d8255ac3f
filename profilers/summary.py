"""Records -> RunSummary; pure."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from profilers.analysis.anatomy import anatomy, task_rows, warmup_of
from profilers.analysis.communication import communication_rows, message_seconds_reason, peak_bandwidth_reason
from profilers.analysis.events import (
    adapted_row,
    add_step_times,
    ahead_rows,
    change_rows,
    checkpoint_rows,
    detail_notes,
    expert_slot_rows,
    last_change,
    losses_before_steps,
    memory_plan_rows,
    network_rows,
    outer_row,
    plan_rows,
    quality_rows,
    resume_source,
    sequence_rows,
    time_budget,
    uncompressed_parameters,
    update_row,
)
from profilers.analysis.exposed_communication import seconds_of_calls, waits_of
from profilers.analysis.machine import gpu_notes, gpus_of, host_rows, joules_of_ranks
from profilers.analysis.memory import add_outside_bytes, memory_rows, peak
from profilers.analysis.rounds import Rounds, mean_gap_seconds, stretches, wall_seconds, whole_rounds
from profilers.analysis.statistics import mean_interval, p95
from profilers.analysis.steps import JoinedSteps, join_steps, mean_phases
from profilers.analysis.wire_counters import interface_rows, wire_totals
from profilers.gpu.rank_gpus import RankGpus, gpus_of_ranks
from profilers.model.environment import environment_rows
from profilers.model.run_summary import Bounds, CommunicationRow, RunFacts, RunSummary, StepSeconds
from profilers.model.verdict import Thresholds, Verdict, judge, rate
from profilers.records.reader import RunRecords
from profilers.verdicts.episodes import episodes_of
from profilers.verdicts.rules import exposures_of, findings_of

__all__ = ["RunFacts", "RunSummary", "summarize"]


def summarize(records: RunRecords, facts: RunFacts) -> RunSummary:
    """What the records of a run amount to, however far it came; None where nothing was recorded."""
    steps = join_steps({rank: records.table(rank, "step") for rank in records.ranks()})
    changes = change_rows(records)
    since = facts.since if facts.since is not None else last_change(changes)
    written = settled = steps.select_range(since, None)
    if facts.settling is not None:
        settled = written.exclude_first(facts.settling)
    rounds = whole_rounds(settled.select_measured(), facts.round_steps)
    measured = rounds.steps if len(rounds.seconds) else settled.select_measured()
    detailed = measured.select_detailed()
    tokens = _step_tokens(facts, measured if len(measured.steps) else steps)
    used = gpus_of_ranks(records)
    memory = memory_rows(records, since or 0)
    fields: dict[str, Any] = {
        **_of_facts(facts),
        "tokens_per_step": None if tokens is None else round(tokens),
        "first_step": int(steps.steps[0]) if len(steps.steps) else 0,
        "resumed": resume_source(records),
        **_event_rows(records),
        "changes": add_step_times(changes, steps),
        "measured_from_step": int(measured.steps[0]) if len(measured.steps) else None,
        "losses": steps.values["loss"].mean(axis=0).tolist() if steps.ranks else [],
        "gradient_norms": steps.values["gradient_norm"].mean(axis=0).tolist() if steps.ranks else [],
        **_held_out(records, steps),
        "quality": quality_rows(records, steps, facts.backend),
        "tasks": task_rows(
            records, steps.steps.tolist(), facts.layout.get("tp", 1) * facts.layout.get("cp", 1)
        ),
        "memory": memory,
        **peak(memory),
        "dropped_records": _dropped_records(records),
        **warmup_of(settled, (*facts.notes, *detail_notes(records, measured, detailed))),
        **_whole_run(records, steps, facts),
    }
    if len(measured.steps):
        fields |= _speed(rounds, measured, facts, tokens) | _energy(measured, records, used)
        # Ranks read counters where they begin.
        counted = measured if settled is written else written.select_measured()
        fields |= _in_detail(measured, detailed, counted, records, facts, used)
    else:
        reasons = ("tokens_per_second_reason", "mfu_reason", "wire_bytes_reason", "joules_reason")
        fields |= dict.fromkeys(reasons, "no measured step")
    span = measured.span if len(measured.steps) else None
    fields |= gpus_of(records, used, span)
    fields["memory"] = add_outside_bytes(memory, fields["gpus"])
    fields |= {"hosts": host_rows(records, span), "interfaces": interface_rows(records, span)}
    fields["notes"] = [*fields["notes"], *gpu_notes(records)]
    if fields["gpus"] and used.reason:
        fields["notes"] = [*fields["notes"], f"{used.reason}; verdicts about GPUs leave it out"]
    return RunSummary(**fields)


def _step_tokens(facts: RunFacts, steps: JoinedSteps) -> float | None:
    """Tokens of a step; where only ranks know them, their mean over the steps that a rate is of."""
    counts = _told_tokens(facts, steps)
    if facts.tokens_per_step is not None or counts is None:
        return facts.tokens_per_step
    return counts / len(steps.steps)


def _told_tokens(facts: RunFacts, steps: JoinedSteps) -> float | None:
    """Of all ranks in these steps, each token once; None where they do not tell."""
    tokens = steps.values["tokens"]
    return float(tokens.sum()) / facts.ranks_alike if facts.ranks_alike and tokens.count() else None


def _event_rows(records: RunRecords) -> dict[str, Any]:
    """What ranks told in events of their own."""
    return {
        **time_budget(records),
        "left_alone": uncompressed_parameters(records),
        "plans": plan_rows(records),
        "memory_plans": memory_plan_rows(records),
        "expert_slots": expert_slot_rows(records),
        **sequence_rows(records),
        "batches_ahead": ahead_rows(records),
        "networks": network_rows(records),
        "adapted": adapted_row(records),
        "update": update_row(records),
        "outer": outer_row(records),
        "checkpoints": checkpoint_rows(records),
        "environment": environment_rows(records),
    }


def _of_facts(facts: RunFacts) -> dict[str, Any]:
    return {
        "id": facts.run,
        "layout": facts.layout,
        "world_size": facts.world_size,
        "backend": facts.backend,
        "parameters": facts.parameters,
        "shared_parameters": facts.model.shared_parameters,
        "workload": facts.model.name,
        "metric_name": facts.model.metric,
        "model_flops_per_step": facts.model_flops_per_step,
        "hardware_flops_per_step": facts.hardware_flops_per_step,
        "mfu_convention": facts.mfu_convention,
        "peak_flops": facts.peak_flops_per_second,
        "peak_source": facts.peak_source,
    }


def _speed(rounds: Rounds, measured: JoinedSteps, facts: RunFacts, tokens: float | None) -> dict[str, Any]:
    """Rates over whole rounds, and what a step takes; without a whole round there is no rate, and the reason."""
    samples, cpu = wall_seconds(measured), measured.values["cpu_seconds"].sum(axis=0).mean()
    mean, low, high = mean_interval(rounds.seconds / rounds.period) if len(rounds.seconds) else (None,) * 3
    slow, fast = _rate(tokens, high), _rate(tokens, low)
    return {
        "measured_steps": len(samples),
        "round_steps": rounds.period,
        "round_samples": rounds.seconds.tolist(),
        "step_seconds": StepSeconds(float(np.median(samples)), p95(samples), low, high, mean),
        "step_samples": samples.tolist(),
        "tokens_per_second": _rate(tokens, mean),
        "tokens_per_second_interval": Bounds(slow, fast) if slow and fast else None,
        "tokens_per_second_reason": _no_rate(mean, tokens, rounds.period, len(samples)),
        **_utilization(mean, facts),
        "cpu_seconds_per_step": float(cpu),
    }


def _no_rate(mean: float | None, tokens: float | None, period: int, steps: int) -> str | None:
    if mean is None:
        return _no_round(period, steps)
    if tokens is None:
        return "the job does not tell the tokens of a step (profilers.recording(tokens=...))"
    return None


def _no_round(period: int, steps: int) -> str:
    return (
        f"replicas average once in {period:,} steps, and no stretch of so many was measured, only {steps:,} steps: "
        "raise train.steps or lower outer.period"
    )


def _whole_run(records: RunRecords, steps: JoinedSteps, facts: RunFacts) -> dict[str, Any]:
    """Tokens of all recorded steps over all the time from the ranks' start to their last record."""
    times = [event.time_unix for rank in records.ranks() for event in records.events(rank)]
    if not len(steps.steps):
        return {}
    begin, end = steps.span
    seconds = max([end, *times]) - min([begin, *times])
    tokens_by_step = _told_tokens(facts, steps)
    tokens = _times(facts.tokens_per_step, len(steps.steps)) if tokens_by_step is None else tokens_by_step
    return {"wall_seconds": seconds, "tokens_per_wall_second": _rate(tokens, seconds)}


def _times(amount: int | None, count: int) -> int | None:
    return None if amount is None else amount * count


def _rate(amount: float | None, seconds: float | None) -> float | None:
    return amount / seconds if amount is not None and seconds else None


def _utilization(seconds: float | None, facts: RunFacts) -> dict[str, Any]:
    """MFU as PaLM defines it (arXiv 2204.02311, appendix B), and HFU (arXiv 2205.05198), which counts recomputation."""
    model = _rate(facts.model_flops_per_step, seconds)
    shares: dict[str, Any] = {"model_flops_per_second": model}
    peak = facts.peak_flops_per_second
    if model is None:
        why = facts.model.flops_reason if seconds else "no whole round was measured"
        return shares | {"mfu_reason": why}
    if not peak:
        return shares | {"mfu_reason": f"the peak of this device is not known: {facts.peak_source}"}
    over = f"over {facts.world_size} x {peak:.4g} FLOP/s ({facts.peak_source})"
    hardware = _rate(facts.hardware_flops_per_step, seconds)
    return shares | {
        "mfu": model / (peak * facts.world_size),
        "mfu_reason": f"model FLOPs without recomputation {over}",
        "hfu": None if hardware is None else hardware / (peak * facts.world_size),
    }


def _energy(measured: JoinedSteps, records: RunRecords, used: RankGpus) -> dict[str, Any]:
    """Of the measured steps alone: what evaluation and checkpoints between them take is left out."""
    parts = stretches(measured)
    joules_by_part = [joules_of_ranks(records, used, part.begin, part.end) for part in parts]
    joules = [energy for energy, _ in joules_by_part if energy is not None]
    whole = sum(joules) if len(joules) == len(parts) else None
    return {
        "joules_per_step": _rate(whole, len(measured.steps)),
        "joules_reason": next((reason for _, reason in joules_by_part if reason), None),
    }


_NO_DETAIL = "none of the measured steps was recorded in detail (profile.budget)"


def _in_detail(
    measured: JoinedSteps,
    detailed: JoinedSteps,
    counted: JoinedSteps,
    records: RunRecords,
    facts: RunFacts,
    used: RankGpus,
) -> dict[str, Any]:
    if not len(
        detailed.steps
    ):  # recording costs too much for every step, and these few are none of those drawn
        return {"wire_bytes_reason": _NO_DETAIL, "peak_bandwidth_reason": _NO_DETAIL}
    calls = _calls(detailed, records, facts)
    rows = calls["communication"]
    return {
        "detailed_steps": len(detailed.steps),
        **calls,
        **wire_totals(records, counted if len(counted.steps) else measured, rows),
        **_where_time_goes(detailed, records, facts, used, rows),
    }


def _calls(detailed: JoinedSteps, records: RunRecords, facts: RunFacts) -> dict[str, Any]:
    tables = [records.table(rank, "comm") for rank in detailed.ranks]
    rank_steps = len(detailed.steps) * len(tables)
    exposed = [
        seconds_of_calls(table, detailed.steps, waits_of(detailed, row)) for row, table in enumerate(tables)
    ]
    rows = communication_rows(tables, detailed.steps, rank_steps, facts.links, facts.backend, exposed)
    return {
        "communication": rows,
        "peak_bandwidth_reason": peak_bandwidth_reason(rows, facts.links_reason),
        "message_seconds_reason": message_seconds_reason(row.operation for row in rows),
    }


def _where_time_goes(
    detailed: JoinedSteps,
    records: RunRecords,
    facts: RunFacts,
    used: RankGpus,
    rows: list[CommunicationRow],
) -> dict[str, Any]:
    breakdown = anatomy(detailed, records, facts)
    waits = exposures_of(records, detailed, facts.setting)
    findings = findings_of(records, detailed, facts.setting, waits, rows, breakdown, used)
    return {
        "phases": mean_phases(detailed),
        "late_rank_seconds": sum(wait.late_seconds for wait in waits),
        "between_seconds": mean_gap_seconds(detailed),
        **breakdown,
        **_verdicts(findings, facts.setting.thresholds),
        "episodes": episodes_of(records, detailed, facts.setting, findings, facts.round_steps),
    }


def _verdicts(findings: list[Verdict], thresholds: Thresholds) -> dict[str, list[Verdict]]:
    return {"findings": rate(findings, thresholds), "verdicts": judge(findings, thresholds)}


def _held_out(records: RunRecords, steps: JoinedSteps) -> dict[str, float | None]:
    """What all ranks told last of held-out samples, but not what was so before the first step of a run that trained."""
    names = {"loss": "validation_loss", "partial_loss": "partial_loss", "metric": "validation_metric"}
    first = int(steps.steps[0]) if len(steps.steps) else -1
    losses = dict[str, float | None]()
    for field, name in names.items():
        by_step = losses_before_steps(records, sys.maxsize, field)
        last = max(by_step, default=first)
        losses[name] = by_step[last] if last > first else None
    return losses


def _dropped_records(records: RunRecords) -> int:
    events = [event for process in records.processes() for event in records.events(process)]
    counts = [event.data.get("count") for event in events if event.kind == "dropped"]
    return sum(count for count in counts if isinstance(count, int))
