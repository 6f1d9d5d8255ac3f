"""What is said of a run, by topic: lines as (label, text), and tables, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profilers.analysis.communication import message_seconds_reason
from profilers.model.environment import EnvironmentRow
from profilers.model.rows import (
    ChangeRow,
    CheckpointRow,
    InterfaceRow,
    OuterRow,
    SequenceGroupRow,
    SequencePlanRow,
)
from profilers.model.run_summary import CommunicationRow, RunSummary
from profilers.model.verdict import Episode, Verdict
from workbench.text import quantities, step, words
from workbench.text.quantities import (
    BANDWIDTH,
    COUNT,
    MEAN_COUNT,
    MEGABYTES,
    MILLISECONDS,
    PERCENT,
    SECONDS,
    Column,
)

Line = tuple[str, str]
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


def lines(summary: RunSummary) -> Iterator[Line]:
    """All that a summary says apart from its verdicts, most important first."""
    losses = [loss for loss in summary.losses if loss is not None]
    if summary.workload not in (None, "decoder") or summary.shared_parameters:
        size = words.count(summary.parameters or None)
        yield (
            "model",
            f"{summary.workload}, {size} parameters{words.sharing_words(summary.shared_parameters)}",
        )
    if losses:
        held_out = summary.validation_loss
        tail = "" if held_out is None else f"; validation {words.loss(held_out)}"
        tail += f", {metric_text}" if (metric_text := metric(summary)) else ""
        tail = f" over {words.several(len(summary.losses), 'steps')}{tail}"
        yield "loss", f"{words.loss(losses[0])} -> {words.loss(losses[-1])}{tail}"
    yield from checkpoint_lines(summary)
    yield from _step_lines(summary)
    if summary.peak_memory_bytes is not None:
        yield "memory", _memory(summary)
    if summary.communication:
        yield "on the wire", wire(summary)
    if summary.model_flops_per_second is not None:
        yield "FLOPs", flops(summary)
    yield from _machine_lines(summary)
    for row in summary.expert_slots:
        yield "experts", step.expert_slots(row)
    if summary.sequence_groups:
        yield "documents", shared_documents(summary.sequence_groups, summary.sequence_plans)
    if summary.batches_ahead:
        yield "batches", step.batches_ahead(summary.batches_ahead)
    yield from _trained_lines(summary)
    if summary.outer is not None:
        yield "outer loop", outer(summary.outer)
    yield from uncompressed_lines(summary)
    for variable in summary.environment:
        yield "environment", _variable(variable)
    yield from note_lines(summary)


def _trained_lines(summary: RunSummary) -> Iterator[Line]:
    """Which part of a network learns, or is left out of a step."""
    if summary.adapted is not None:
        yield "adapted", step.adapted_text(summary.adapted)
    if summary.update is not None:
        yield "trained", step.update(summary.update)
    if summary.partial_products is not None:
        yield "left out", step.partial_products(summary.partial_products)


def shared_documents(groups: Sequence[SequenceGroupRow], plans: Sequence[SequencePlanRow]) -> str:
    """How ranks shared whole documents, and how far off predictions of it were; some groups are there."""
    degrees = sorted({row.degree for row in groups})
    steps, tokens = len({row.step for row in groups}), sum(row.tokens for row in groups)
    shares = ", ".join(
        f"{words.percent(sum(row.tokens for row in groups if row.degree == degree) / tokens)} to groups of {degree}"
        for degree in degrees
    )
    error = sum(abs(row.planned_seconds / row.seconds - 1) for row in groups if row.seconds) / len(groups)
    text = (
        f"of {tokens:,} tokens in the last {steps:,} steps {shares}; predicted seconds of a group were off by "
        f"{words.percent(error)} in the mean"
    )
    if not plans:
        return text
    planner, wait_seconds = (
        sum(values) / len(plans)
        for values in zip(*((row.planner_seconds, row.waited_seconds) for row in plans), strict=True)
    )
    proven_share = sum(row.proven for row in plans) / len(plans)
    learned = ", ".join(f"of {degree} {value:.2f} times" for degree, value in plans[-1].factors.items())
    text += f", with what groups took beside the start's measurements: {learned}" if learned else ""
    return (
        f"{text}; a plan took {words.seconds(planner)}, of which {words.seconds(wait_seconds)} were waited for, and "
        f"{words.percent(proven_share)} are proven to be the best"
    )


def document_columns(groups: Sequence[SequenceGroupRow]) -> list[Column]:
    """Groups that shared documents, by their size."""
    degrees = sorted({row.degree for row in groups})
    rows_of_degrees = {degree: [row for row in groups if row.degree == degree] for degree in degrees}
    planned_seconds = [
        sum(row.planned_seconds for row in rows) / len(rows) for rows in rows_of_degrees.values()
    ]
    measured_seconds = [sum(row.seconds for row in rows) / len(rows) for rows in rows_of_degrees.values()]
    return [
        Column("ranks", list(rows_of_degrees), COUNT),
        Column("groups", [len(rows) for rows in rows_of_degrees.values()], COUNT),
        Column("documents", [sum(row.documents for row in rows) for rows in rows_of_degrees.values()], COUNT),
        Column("tokens", [sum(row.tokens for row in rows) for rows in rows_of_degrees.values()], COUNT),
        Column("predicted", planned_seconds, MILLISECONDS, "Mean seconds of a micro-batch."),
        Column("measured", measured_seconds, MILLISECONDS, "On the rank of each group that came last."),
    ]  # fmt: skip


def metric(summary: RunSummary) -> str:
    """On held-out samples, beside the loss: the model's metric, and the loss with stages left out, if there are any."""
    metrics = (summary.metric_name, summary.validation_metric), ("with stages left out", summary.partial_loss)
    return ", ".join(f"{name} {words.loss(value)}" for name, value in metrics if value is not None)


def _step_lines(summary: RunSummary) -> Iterator[Line]:
    seconds = summary.step_seconds
    if seconds is None:
        return
    low, high = seconds.low, seconds.high
    interval_text = "" if low is None else _bracket(words.seconds(low), words.seconds(high))
    since = f" from step {summary.measured_from_step:,} on" if summary.changes else ""  # measuring began anew
    median, p95 = words.seconds(seconds.median), words.seconds(seconds.p95)
    if seconds.mean is None:  # no whole round, or a summary from before there was a mean
        yield "step", f"median {median}{interval_text}, p95 {p95}, {summary.measured_steps} measured{since}"
    else:
        mean = f"mean {words.seconds(seconds.mean)}{interval_text}"
        yield "step", f"{mean}, median {median}, p95 {p95}, {summary.measured_steps} measured{since}"
    yield "speed", speed(summary)
    if summary.phases:
        yield "phases", step.phases(summary.phases, summary.between_seconds or 0.0)
    if summary.exposed_seconds_by_axis:
        parts = waits(summary, words.seconds)
        axes = step.axes_text(summary.exposed_seconds_by_axis, summary.hidden_seconds_by_axis)
        yield "exposed", "; ".join(part for part in (axes, parts) if part)
    if summary.slowest_rank_share is not None:
        yield "skew", step.straggler(summary)
    for text in step.anatomy(summary):
        yield "anatomy", text
    for gap in summary.gaps[:1]:
        yield "longest gap", step.longest_gap(gap)


def speed(summary: RunSummary) -> str:
    """Tokens per second over whole rounds, and over all the time that the run took; or why there is none."""
    rates, whole = summary.tokens_per_second_interval, summary.tokens_per_wall_second
    if summary.tokens_per_second is None:
        text = f"not known: {summary.tokens_per_second_reason}"
    else:
        bracket = _bracket(words.number(rates.low), words.number(rates.high)) if rates else ""
        text = f"{words.number(summary.tokens_per_second)} tokens/s{bracket}"
        if summary.round_steps > 1:
            text += f" over {words.several(len(summary.round_samples), 'rounds')} of {summary.round_steps:,} steps"
    if whole is not None:
        text += f"; {words.number(whole)} over all {words.seconds(summary.wall_seconds)} since it began"
    return text


def _bracket(low: str, high: str) -> str:
    return f" (95 %: {low} to {high})"


def budget(summary: RunSummary) -> str | None:
    """What a run took of the time that it was given; None of one that counted its steps, or did not come to an end."""
    if summary.budget_seconds is None or summary.budget_used_seconds is None:
        return None
    used_text, budget_text = (
        words.seconds(seconds) for seconds in (summary.budget_used_seconds, summary.budget_seconds)
    )
    ended = "until it was stopped" if summary.budget_stopped else "the last loss and checkpoint included"
    return f"{used_text} of {budget_text}, {ended}; {words.several(len(summary.losses), 'steps')}"


def checkpoint_lines(summary: RunSummary) -> Iterator[Line]:
    """Where the run came from, what it took of its time, what checkpoints cost, and those that could not be saved."""
    if text := budget(summary):
        yield "time", text
    if summary.resumed:
        changed = summary.resumed.changed
        text = f"step {summary.resumed.step:,} of {summary.resumed.run}"
        yield "resumed from", text + (f"; differs in {', '.join(changed)}" if changed else "")
    saved = [row for row in summary.checkpoints if row.problem is None]
    if saved:
        last, paused_seconds = saved[-1], sum(row.paused_seconds for row in summary.checkpoints)
        size = "" if last.bytes is None else f" ({words.gib(last.bytes)} in {words.seconds(last.seconds)})"
        text = f"{len(saved):,} saved, the last before step {last.step:,}{size}"
        yield "checkpoints", f"{text}; training waited {words.seconds(paused_seconds)}"
    for row in summary.checkpoints:
        if row.problem is not None:
            yield "not saved", f"the checkpoint before step {row.step:,}: {row.problem}"


def checkpoint_columns(rows: Sequence[CheckpointRow]) -> list[Column]:
    """Every save, and what it cost."""
    return [
        Column("next step", [row.step for row in rows], COUNT),
        Column("size", [row.bytes for row in rows], MEGABYTES._replace(format="%,.1f")),
        Column("took", [row.seconds for row in rows], SECONDS),
        Column("training waited", [row.paused_seconds for row in rows], SECONDS),
        Column("in the background", [row.asynchronous for row in rows]),
        Column("problem", [row.problem for row in rows]),
    ]


def _memory(summary: RunSummary) -> str:
    text = f"{words.gib(summary.peak_memory_bytes)} at the peak, of the rank that needed most"
    if summary.peak_memory_rank is None:
        return text
    phase_text = f", in {words.ending_words(summary.peak_memory_phase)}" if summary.peak_memory_phase else ""
    retries = sum(row.allocation_retries or 0 for row in summary.memory)
    retries_text = f"; {retries:,} allocations had to be tried again" if retries else ""
    outside = max((row.outside_allocator_bytes or 0 for row in summary.memory), default=0)
    outside_text = f"; {words.gib(outside)} more outside the allocator" if outside else ""
    return f"{text}: rank {summary.peak_memory_rank}{phase_text}{outside_text}{retries_text}"


def waits(summary: RunSummary, unit: Callable[[float], str]) -> str:
    """What the waits for communication are made of; empty where there are none, or an older version did not tell."""
    whole, late = summary.phases.get("communication_exposed"), summary.late_rank_seconds
    if not whole or late is None:
        return ""
    return f"{unit(max(0.0, whole - late))} for the calls, {unit(late)} for late ranks"


def share_of_step(summary: RunSummary) -> Callable[[float], str]:
    """Seconds as a part of the mean step, to the digit that verdicts have."""
    mean = sum(step.add_between(summary.phases, summary.between_seconds or 0.0).values())
    return lambda seconds: words.percent(seconds / mean, 1)


def peak_memory_rank(summary: RunSummary) -> str:
    """Whose peak it was, during what, and since when, where it is not of the whole run."""
    rank, phase = summary.peak_memory_rank, summary.peak_memory_phase
    since = ", since the last change" if summary.changes else ""
    if rank is None:
        return f"of the largest rank{since}"
    return (f"rank {rank}, in {words.ending_words(phase)}" if phase else f"of rank {rank}") + since


def wire(summary: RunSummary) -> str:
    """Bytes that a rank sends in a step, by formula and as counted."""
    formula, measured = summary.wire_bytes_per_step, summary.wire_bytes_measured
    reason = summary.wire_bytes_reason
    by_formula = f"{words.gib(formula)} a step and rank by formula"
    if measured is None:
        return f"{by_formula}; not counted: {reason}"
    comparison = f" ({measured / formula - 1:+.2%})" if formula else f" ({reason})" if reason else ""
    return f"{by_formula}, {words.gib(measured)} counted at the interfaces{comparison}"


def communication_columns(rows: Sequence[CommunicationRow]) -> list[Column]:
    """Every operation on every axis, per step and rank."""
    return [
        Column("axis", [row.axis for row in rows]),
        Column("operation", [row.operation for row in rows]),
        Column("calls", [row.calls for row in rows], MEAN_COUNT),
        Column("bytes", [row.bytes for row in rows], MEGABYTES),
        Column(
            "wire bytes",
            [row.wire_bytes for row in rows],
            MEGABYTES,
            "What the backend's algorithm sends for it, by formula, without headers.",
        ),
        Column("time", [row.seconds for row in rows], MILLISECONDS),
        Column("exposed", [row.exposed_seconds for row in rows], MILLISECONDS),
        Column("bus bandwidth", [row.bus_bandwidth for row in rows], BANDWIDTH),
        Column(
            "of peak",
            [row.peak_fraction for row in rows],
            PERCENT,
            "Of the best bus bandwidth that `workbench calibrate` measured here.",
        ),
        Column(
            "expected",
            [row.expected_seconds for row in rows],
            MILLISECONDS,
            "As many calls of the mean size, by the calibration's fit.",
        ),
    ]


def missing_reasons(rows: Sequence[CommunicationRow], summary: RunSummary) -> Iterator[str]:
    """Why cells of ``communication_columns`` are empty."""
    if summary.peak_bandwidth_reason:
        yield f"percent of peak: {summary.peak_bandwidth_reason}"
    # By the rows: a run that goes on has them before it has a summary.
    if reason := summary.message_seconds_reason or message_seconds_reason([row.operation for row in rows]):
        yield f"time of {reason}"


def flops(summary: RunSummary) -> str:
    """Work and rate of the model, and the share of the peak or why there is none."""
    work, rate = _si_number(summary.model_flops_per_step), _si_number(summary.model_flops_per_second)
    if summary.mfu is None:
        return f"{work}FLOP of the model per step, {rate}FLOP/s; no MFU: {summary.mfu_reason}"
    shares = f"MFU {words.percent(summary.mfu, 1)}, HFU {words.percent(summary.hfu, 1)}"
    peak = f"{_si_number(summary.peak_flops)}FLOP/s a device: {summary.peak_source}"
    return f"{work}FLOP of the model per step, {rate}FLOP/s; {shares} ({peak})"


def _si_number(value: float | None) -> str:
    """A number of operations in front of its unit: "1.43 P", "989.5 T"."""
    if value is None:
        return f"{words.NOTHING} "
    letter, size = next(((name, size) for name, size in _PREFIXES if value >= size), ("", 1.0))
    return f"{value / size:,.4g} {letter}"


def _machine_lines(summary: RunSummary) -> Iterator[Line]:
    for host in summary.hosts:
        yield f"host {host.host}" if host.host else "host", quantities.host(host)
    has_several_hosts = len({row.host for row in summary.gpus}) > 1
    for row in summary.gpus:
        yield f"GPU {row.gpu}" + (f" of {row.host}" if has_several_hosts else ""), quantities.gpu(row)
    for interface in summary.interfaces:
        yield "interface", _interface(interface)
    if summary.networks:
        yield "networks", step.networks(summary.networks)


def _interface(row: InterfaceRow) -> str:
    rates = (row.sent_bytes_per_second / 1e6, row.received_bytes_per_second / 1e6)
    rates_text = "{:,.2f} MB/s sent, {:,.2f} MB/s received".format(*rates)
    text = f"{row.interface} of {words.named_ranks(row.ranks)}: {rates_text}"
    if row.rate_mbit is None:
        return text
    shares = f"{words.percent(row.sent_utilization)} and {words.percent(row.received_utilization)}"
    return f"{text}; {shares} of {row.rate_mbit:,g} Mbit/s"


def outer(row: OuterRow) -> str:
    """What replicas took over from each other."""
    least, most = row.least_staleness, row.most_staleness
    old = words.several(most, "rounds") if least == most else f"{least} to {most} rounds"
    text = f"{row.averages:,} averages over replicas in {words.several(row.rounds, 'rounds')}, each {old} old"
    send_text = f"sent {row.delay_steps:,.3g} steps before"
    wait_text = f"waited {words.seconds(row.wait_seconds)} for one (mean)"
    if row.end_wait_seconds is not None:
        wait_text += (
            f", and once {words.seconds(row.end_wait_seconds)} for what was on its way after the last step"
        )
    return f"{text}, {send_text}; {wait_text}"


def uncompressed_lines(summary: RunSummary) -> Iterator[Line]:
    """A line for each reason why gradients were not compressed."""
    for reason in dict.fromkeys(summary.left_alone.values()):
        names = [name for name, why in summary.left_alone.items() if why == reason]
        others = f" and {len(names) - 1:,} others" if len(names) > 1 else ""
        yield "not compressed", f"{names[0]}{others}: {reason}"


def changes(rows: Sequence[ChangeRow]) -> list[str]:
    """Changes of one step in one line each: what, who asked, and what a step took before and after."""
    by_step: dict[tuple[int, str], list[ChangeRow]] = {}
    for row in rows:
        by_step.setdefault((row.step, row.by), []).append(row)
    texts = []
    for (number, sender), same_step in by_step.items():
        changes_text = ", ".join(
            f"{row.key} {words.value(row.old)} → {words.value(row.new)}" for row in same_step
        )
        text = f"from step {number:,} on: {changes_text}" + (f" ({sender})" if sender else "")
        before, after = same_step[0].seconds_before, same_step[0].seconds_after
        if before is not None and after is not None:
            text += f"; a step took {words.seconds(before)} before, {words.seconds(after)} after"
        texts.append(text)
    return texts


def _variable(row: EnvironmentRow) -> str:
    """One environment variable of a run: asked for, seen, and whether it took effect."""
    text = f", the process has {row.seen}" if row.seen != row.asked else ""
    value_text = f", {row.used} used" if row.used not in (None, row.asked) else ""
    return f"{row.name}={row.asked}{text}{value_text}; took effect: {row.proven} ({row.how})"


def environment_columns(rows: Sequence[EnvironmentRow]) -> list[Column]:
    """The environment variables that a run asked for, what libraries used of them, and whether that is proven."""
    return [
        Column("setting", [row.name for row in rows]),
        Column("asked", [row.asked for row in rows]),
        Column("seen in the process", [row.seen for row in rows]),
        Column("used by the library", [row.used for row in rows]),
        Column("took effect", [row.proven for row in rows]),
        Column("how that is known", [row.how for row in rows]),
        Column("ranks", [words.ranks(row.ranks) for row in rows]),
    ]


def note_lines(summary: RunSummary) -> Iterator[Line]:
    """What a reader of the numbers should know."""
    for note in summary.notes:
        yield "note", note
    if summary.dropped_records:
        yield "dropped", f"{summary.dropped_records} records could not be written"


def limit(verdict: Verdict) -> str:
    """A verdict's threshold, as ``--threshold`` takes it."""
    return f"{verdict.threshold_name}={verdict.threshold:g}"


def gain(verdict: Verdict) -> str | None:
    """The most that turning the knob can win; None where that is not known."""
    if verdict.gain is None:
        return None
    return f"at most {words.percent(verdict.gain.fraction, 1)} of a step = {verdict.gain.formula}"


def verdict_lines(verdict: Verdict) -> Iterator[Line]:
    """A verdict with its threshold and evidence, then the knob and the gain."""
    limit_text = f", above {limit(verdict)}" if verdict.share is not None else ""
    yield "finding", f"{words.bottleneck(verdict.name, verdict.axis)}{limit_text}: {verdict.evidence}"
    yield "", f"change: {verdict.advice}"
    if text := gain(verdict):
        yield "", f"expect: {text}"


def episode(row: Episode) -> str:
    """What held for a part of the run, and in which steps."""
    verdict = row.verdict
    steps = f"steps {row.first_step:,} to {row.last_step:,}" + (", the latest" if row.goes_on else "")
    return f"{words.bottleneck(verdict.name, verdict.axis)} in {steps}: {verdict.evidence}"


def so_far(summary: RunSummary) -> str:
    """Of what a run that goes on has its numbers."""
    if not summary.measured_steps:
        return "No step was measured: the first ones warm up."
    last = summary.first_step + len(summary.losses) - 1
    measured = words.several(summary.measured_steps, "steps")
    return f"Still running: numbers are of {measured}, measured so far up to step {last:,}."


def minor_findings_text(findings: Sequence[Verdict]) -> str:
    """Findings that are not above their thresholds, in one line."""
    return ", ".join(
        f"{words.bottleneck(finding.name, finding.axis)} {words.percent(finding.share, 1)} ({limit(finding)})"
        for finding in findings
    )
