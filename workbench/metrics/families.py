"""Followed runs as Prometheus metric families: base units in the names, totals as counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.run.outcome import Ending
from profilers.records.schema import STREAMS, growing_fields
from workbench.metrics.follow import KEYS, STEP_BOUNDS, CallSums, ExpertSums, FollowedRun

STATES = ("starting", "running", *(ending.value for ending in Ending))
_GROWING = growing_fields()
#: Prometheus asks for base units and for ratio instead of fraction.
_UNITS = {"_fraction": ("_ratio", 1.0), "_mhz": ("_hertz", 1e6)}
_PER_RANK = ["run", "rank"]


def families(runs: list[FollowedRun]) -> Iterator[Metric]:
    """Every family that has something to say about one of the runs."""
    for family in (
        *_of_runs(runs),
        *_of_steps(runs),
        *_of_calls(runs),
        *_of_experts(runs),
        *_of_tasks(runs),
        *_of_readings(runs),
    ):
        if family.samples:
            yield family


def _of_runs(runs: list[FollowedRun]) -> Iterator[Metric]:
    info = GaugeMetricFamily("workbench_run_info", "What a run is; always 1.",
                             labels=["run", "study", "trial", "backend"])  # fmt: skip
    state = GaugeMetricFamily("workbench_run_state", "1 for the state that a run is in, or how it ended.",
                              labels=["run", "state"])  # fmt: skip
    rate = GaugeMetricFamily("workbench_tokens_per_second",
                             "Tokens of all ranks over the wall time of the last 20 steps or whole rounds.",
                             labels=["run"])  # fmt: skip
    dropped_records = CounterMetricFamily("workbench_dropped_records", "Records that a process could not write.",
                                  labels=["run", "process"])  # fmt: skip
    problems = GaugeMetricFamily("workbench_unreadable_parts", "Parts of the records that could not be read.",
                                 labels=["run"])  # fmt: skip
    for run in runs:
        info.add_metric([run.id, *run.labels.values(), run.status.backend or ""], 1)
        for name in STATES:
            state.add_metric([run.id, name], run.state == name)
        if (tokens := run.tokens_per_second()) is not None:
            rate.add_metric([run.id], tokens)
        for process, count in run.dropped.items():
            dropped_records.add_metric([run.id, process], count)
        problems.add_metric([run.id], len(run.problems))
    yield from (info, state, rate, dropped_records, problems)


def _of_steps(runs: list[FollowedRun]) -> Iterator[Metric]:
    histogram = HistogramMetricFamily(
        "workbench_step_seconds", "Seconds of a step on a rank.", labels=_PER_RANK
    )
    detailed = CounterMetricFamily(
        "workbench_detailed_steps", "Steps that were recorded in detail.", labels=_PER_RANK
    )
    phases = CounterMetricFamily("workbench_phase_seconds",
                                 "Seconds of detailed steps in a phase; phases are disjoint.",
                                 labels=[*_PER_RANK, "phase"])  # fmt: skip
    processor = CounterMetricFamily(
        "workbench_step_cpu_seconds", "Processor seconds of all steps.", labels=_PER_RANK
    )
    step = GaugeMetricFamily("workbench_step", "The last step that a rank has ended.", labels=_PER_RANK)
    loss = GaugeMetricFamily("workbench_loss", "Training loss of the last step.", labels=_PER_RANK)
    norm = GaugeMetricFamily(
        "workbench_gradient_norm", "Norm of the last gradient before clipping.", labels=_PER_RANK
    )
    for run, rank, sums in _ranks(runs, lambda run: run.steps.items()):
        labels = [run.id, rank]
        counts = accumulate(sums.buckets)
        bounds = [*(str(bound) for bound in STEP_BOUNDS), "+Inf"]
        histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), sums.seconds)
        detailed.add_metric(labels, sums.detailed)
        for phase, seconds in sums.phase_seconds.items():
            phases.add_metric([*labels, phase], seconds)
        processor.add_metric(labels, sums.cpu_seconds)
        for family, value in (
            (step, max(sums.recent, default=None)),
            (loss, sums.loss),
            (norm, sums.gradient_norm),
        ):
            if value is not None:
                family.add_metric(labels, value)
    yield from (histogram, detailed, phases, processor, step, loss, norm)


_CALLS: tuple[tuple[str, str, Callable[[CallSums], float | None]], ...] = (
    ("workbench_collectives", "Collectives and messages of detailed steps.", lambda sums: sums.calls),
    ("workbench_collective_bytes", "Payload handed to collectives.", lambda sums: sums.bytes),
    ("workbench_collective_seconds", "Seconds of collectives whose time is known.", lambda sums: sums.seconds),
    ("workbench_collective_exposed_seconds", "Seconds for which the main thread stood waiting.",
     lambda sums: sums.exposed_seconds),
)  # fmt: skip


def _of_calls(runs: list[FollowedRun]) -> Iterator[Metric]:
    for name, text, value in _CALLS:
        family = CounterMetricFamily(name, text, labels=[*_PER_RANK, "axis", "operation"])
        for run, rank, of_rank in _ranks(runs, lambda run: run.calls.items()):
            for (axis, operation), sums in of_rank.items():
                if (total := value(sums)) is not None:
                    family.add_metric([run.id, rank, axis, operation], total)
        yield family


def _of_experts(runs: list[FollowedRun]) -> Iterator[Metric]:
    of_expert = [*_PER_RANK, "layer", "expert"]
    choices = CounterMetricFamily(
        "workbench_expert_choices", "Choices that fell on an expert in detailed steps.", labels=of_expert
    )
    dropped_choices = CounterMetricFamily(
        "workbench_expert_dropped_choices", "Those of them that found no slot.", labels=of_expert
    )
    buckets = CounterMetricFamily(
        "workbench_expert_buckets", "Tokens that travelled for all of their bucket.", labels=of_expert
    )
    residual = GaugeMetricFamily("workbench_expert_residual",
                                 "Mean distance of tokens from those that travelled for them, over their length, of a "
                                 "rank's last detailed step.", labels=of_expert)  # fmt: skip
    balance = GaugeMetricFamily("workbench_expert_balance",
                                "What the balance loss weighs, of a rank's last detailed step; 1 when even.",
                                labels=[*_PER_RANK, "layer"])  # fmt: skip
    for run, rank, of_rank in _ranks(runs, lambda run: run.experts.items()):
        for (layer, expert), sums in sorted(of_rank.items()):
            labels = [run.id, rank, str(layer), str(expert)]
            choices.add_metric(labels, sums.choices)
            dropped_choices.add_metric(labels, sums.dropped)
            if sums.last_residual is not None:
                buckets.add_metric(labels, sums.buckets)
                residual.add_metric(labels, sums.last_residual)
        for layer in sorted({layer for layer, _ in of_rank}):
            balance.add_metric([run.id, rank, str(layer)], _balance(of_rank, layer))
    yield from (choices, dropped_choices, balance, buckets, residual)


def _of_tasks(runs: list[FollowedRun]) -> Iterator[Metric]:
    labels = [*_PER_RANK, "task"]
    micro_batches = CounterMetricFamily(
        "workbench_task_micro_batches", "Micro-batches that a rank had of a task.", labels=labels
    )
    loss = GaugeMetricFamily(
        "workbench_task_loss", "Mean loss of a rank's last micro-batches of a task.", labels=labels
    )
    for run, rank, of_rank in _ranks(runs, lambda run: run.tasks.items()):
        for task, sums in of_rank.items():
            micro_batches.add_metric([run.id, rank, task], sums.micro_batches)
            if sums.last_loss is not None:
                loss.add_metric([run.id, rank, task], sums.last_loss)
    yield from (micro_batches, loss)


def _balance(of_rank: Mapping[tuple[int, int], ExpertSums], layer: int) -> float:
    sums_of_layer = [sums for (number, _), sums in of_rank.items() if number == layer]
    total = sum(sums.last_choices for sums in sums_of_layer) or 1
    return len(sums_of_layer) * sum(
        sums.last_choices / total * sums.last_probability for sums in sums_of_layer
    )


def _of_readings(runs: list[FollowedRun]) -> Iterator[Metric]:
    metrics: dict[tuple[str, str], Metric] = {}
    for run in runs:
        for stream, processes in run.readings.items():
            for process, readings in processes.items():
                for subject, values in readings.items():
                    for field, (_, value) in values.items():
                        if (stream, field) not in _GROWING and not run.is_current(stream, process):
                            continue
                        family = metrics.setdefault((stream, field), _reading_family(stream, field))
                        _add(family, _labels(run, stream, process, subject), value * _unit(field)[1])
    yield from metrics.values()


def _reading_family(stream: str, field: str) -> Any:
    text = f"The last {field.replace('_', ' ')} of a {stream} record. {_about(stream)}"
    kind = CounterMetricFamily if (stream, field) in _GROWING else GaugeMetricFamily
    return kind(f"workbench_{stream}_{_unit(field)[0]}", text, labels=_label_names(stream))


def _about(stream: str) -> str:
    """The first sentence of its docstring, wherever that breaks its lines."""
    return " ".join((STREAMS[stream].__doc__ or "").split()).partition(". ")[0].removesuffix(".") + "."


def _label_names(stream: str) -> list[str]:
    if stream == "memory":
        return _PER_RANK
    key = KEYS.get(stream)
    return ["run", *([key] if key else []), "host", *([] if key == "rank" else ["rank"])]


def _labels(run: FollowedRun, stream: str, process: str, subject: str) -> list[str]:
    """As many of those as there are: the launcher's own host has no name, for it is the only one of its run.

    Where a rank reads, as the first one on each host of a lab does, it is named too.
    """
    rank = process.removeprefix("rank-") if process.startswith("rank-") else ""
    if stream == "memory":
        return [run.id, rank]
    host = run.hosts.get(process, "")
    labels = [run.id, *([subject] if subject else []), host, rank]
    return labels if rank else labels[: -1 if host else -2]


def _add(family: Any, labels: list[str], value: float) -> None:
    family.add_metric(labels, value)


def _unit(field: str) -> tuple[str, float]:
    for suffix, (unit, factor) in _UNITS.items():
        if field.endswith(suffix):
            return field.removesuffix(suffix) + unit, factor
    return field, 1.0


def _ranks(
    runs: list[FollowedRun], items: Callable[[FollowedRun], Iterable[tuple[str, Any]]]
) -> Iterator[tuple[FollowedRun, str, Any]]:
    for run in runs:
        for rank, sums in sorted(items(run)):
            yield run, rank, sums
