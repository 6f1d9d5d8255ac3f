"""A run as people read it in a terminal.

A run's verdicts as people read them in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.analysis.verdicts import below
from workbench.home.run_commands import refusals, written
from workbench.home.runs import RunView, placement
from workbench.text import step as step_text
from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from profilers.model.rows import GpuRow, HostRow, InterfaceRow
    from profilers.model.run_summary import RunSummary
    from profilers.model.verdict import Verdict


def lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Each verdict with its evidence, threshold, knob and gain; then what stayed below its threshold."""
    for verdict in summary.verdicts:
        limit = f", above {_limit(verdict)}" if verdict.share is not None else ""
        yield "finding", f"{words.bottleneck(verdict.name, verdict.axis)}{limit}: {verdict.evidence}"
        yield "", f"turn: {verdict.knob}"
        if verdict.gain is not None:
            yield (
                "",
                f"expect: at most {words.percent(verdict.gain.fraction, 1)} of a step = {verdict.gain.formula}",
            )
    if text := ", ".join(_short(found) for found in below(summary.findings, summary.verdicts)):
        yield "below limits", f"{text}"


def _short(found: Verdict) -> str:
    name = words.bottleneck(found.name, found.axis)
    return f"{name} {words.percent(found.share, 1)} ({_limit(found)})"


def _limit(found: Verdict) -> str:
    """As ``--threshold`` takes it."""
    return f"{found.threshold_name}={found.threshold:g}"


_LABEL_WIDTH = 13
#: Of a host's ranks, that many are named.
_SHOWN_RANKS = 8
#: What a terminal calls colours of a badge that it has by another name.
_TERMINAL_COLORS = {"orange": "dark_orange", "gray": "bright_black"}
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


def print_run(console: Console, view: RunView) -> None:
    """Everything that matters about one run, most important first."""
    console.print(f"[bold]{view.id}[/]  {_ending(view)}", soft_wrap=True)
    for label, text in _lines(view):
        console.print(f"  {label:<{_LABEL_WIDTH}}{text}", markup=False, soft_wrap=True)
    if view.summary and view.summary.communication:
        console.print(_collectives(view.summary))
        for reason in _reasons(view.summary):
            console.print(f"  {reason}", markup=False, soft_wrap=True, style="dim")
    for answer in written(view.orders):
        console.print(
            f"  {answer.command} of rank {answer.rank}: {answer.told}", soft_wrap=True, markup=False
        )
    for line in refusals(view.orders):
        console.print(f"  refused: {line}", soft_wrap=True, markup=False)
    for line in view.last_lines:
        console.print(f"  | {line}", markup=False, soft_wrap=True, style="dim")


def _ending(view: RunView) -> str:
    state = view.outcome or view.state
    color, text = words.look(state)[0], words.spoken(state)
    color = _TERMINAL_COLORS.get(color, color)
    return f"[{color}]{text}[/]" + (f": {_escaped(view.reason)}" if view.reason else "")


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _lines(view: RunView) -> Iterator[tuple[str, str]]:
    labels = view.labels
    if "study" in labels:
        yield "study", f"{labels['study']}, trial {labels.get('trial', '?')}"
    yield "layout", _layout(view)
    if placed := placement(view.status):
        yield "placement", _placement(placed)
    for text in words.changes([asdict(row) for row in view.changes]):
        yield "changed", text
    for row in view.plans[-1:]:
        yield "plan", words.plan(asdict(row))
    if view.summary:
        yield from _result_lines(view.summary)
    yield "folder", str(view.folder)


def _layout(view: RunView) -> str:
    status, degrees = view.status, view.layout
    text = " ".join(
        f"{axis}={size}" for axis, size in degrees.items() if axis in ("dp", "tp", "pp") or size > 1
    )
    if status.get("backend"):
        text += (
            f"  ({status.get('world_size')} ranks, {status['backend']}: {status.get('backend_reason', '')})"
        )
    return text


def _placement(rows: list[dict[str, Any]]) -> str:
    parts = [
        f"rank {row['rank']} on device {row['device']}" + (f" ({row['host']})" if row["host"] else "")
        for row in rows[:_SHOWN_RANKS]
    ]
    more = len(rows) - len(parts)
    return ", ".join(parts) + (f", and {more:,} more (--json)" if more else "")


def _result_lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    losses = [loss for loss in summary.losses if loss is not None]
    if losses:
        held_out = summary.validation_loss
        tail = "" if held_out is None else f"; validation {held_out:.4f}"
        yield "loss", f"{losses[0]:.4f} -> {losses[-1]:.4f} over {len(summary.losses)} steps{tail}"
    yield from _checkpoint_lines(summary)
    if summary.step_seconds:
        yield from _speed_lines(summary)
    if summary.peak_memory_bytes is not None:
        yield "memory", _memory(summary)
    if summary.communication:
        yield (
            "on the wire",
            words.wire(summary.wire_bytes_per_step, summary.wire_bytes_measured, summary.wire_bytes_reason),
        )
    if summary.model_flops_per_second is not None:
        yield "FLOPs", _flops(summary)
    for host in summary.hosts:
        yield f"host {host.host}" if host.host else "host", _host(host)
    several = len({row.host for row in summary.gpus}) > 1
    for row in summary.gpus:
        yield f"GPU {row.gpu}" + (f" of {row.host}" if several else ""), _gpu(row)
    for interface in summary.interfaces:
        yield "interface", _interface(interface)
    if summary.outer is not None:
        yield "outer loop", words.outer(asdict(summary.outer))
    yield from _left_alone(summary)
    for variable in summary.environment:
        yield "environment", words.variable(asdict(variable))
    for note in summary.notes:
        yield "note", note
    if summary.dropped_records:
        yield "dropped", f"{summary.dropped_records} records could not be written"
    yield from lines(summary)


def _left_alone(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """A line for each reason."""
    for reason in dict.fromkeys(summary.left_alone.values()):
        names = [name for name, why in summary.left_alone.items() if why == reason]
        others = f" and {len(names) - 1:,} others" if len(names) > 1 else ""
        yield "not compressed", f"{names[0]}{others}: {reason}"


def _memory(summary: RunSummary) -> str:
    text = f"{words.gib(summary.peak_memory_bytes)} at the peak, of the rank that needed most"
    if summary.peak_memory_rank is None:
        return text
    during = f", in {words.spoken(summary.peak_memory_phase)}" if summary.peak_memory_phase else ""
    retries = sum(row.allocation_retries or 0 for row in summary.memory)
    again = f"; {retries:,} allocations had to be tried again" if retries else ""
    outside = max((row.outside_allocator_bytes or 0 for row in summary.memory), default=0)
    more = f"; {words.gib(outside)} more outside the allocator" if outside else ""
    return f"{text}: rank {summary.peak_memory_rank}{during}{more}{again}"


def _checkpoint_lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    if summary.resumed:
        changed = summary.resumed.changed
        text = f"step {summary.resumed.step:,} of {summary.resumed.run}"
        yield "resumed from", text + (f"; differs in {', '.join(changed)}" if changed else "")
    good = [row for row in summary.checkpoints if row.problem is None]
    if good:
        last, paused = good[-1], sum(row.paused_seconds for row in summary.checkpoints)
        size = "" if last.bytes is None else f" ({words.gib(last.bytes)} in {words.seconds(last.seconds)})"
        text = f"{len(good):,} saved, the last before step {last.step:,}{size}; training waited {words.seconds(paused)}"
        yield "checkpoints", text
    for row in summary.checkpoints:
        if row.problem is not None:
            yield "not saved", f"the checkpoint before step {row.step:,}: {row.problem}"


def _speed_lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    step, rate = summary.step_seconds, summary.tokens_per_second
    assert step is not None
    around = _bracket(words.seconds(step.low), words.seconds(step.high)) if step.low is not None else ""
    yield (
        "step",
        f"{words.seconds(step.median)}{around}, p95 {words.seconds(step.p95)}, "
        f"{summary.measured_steps} measured{_since(summary)}",
    )
    bounds = summary.tokens_per_second_interval
    around = _bracket(words.number(bounds.low), words.number(bounds.high)) if bounds else ""
    yield "speed", f"{words.number(rate)} tokens/s{around}"
    yield "phases", ", ".join(_phases(summary.phases))
    yield from _anatomy_lines(summary)


def _since(summary: RunSummary) -> str:
    """What is measured begins anew with a change."""
    return f" from step {summary.measured_from_step:,} on" if summary.changes else ""


def _anatomy_lines(summary: RunSummary) -> Iterator[tuple[str, str]]:
    found = summary.as_dict()
    if summary.exposed_seconds_by_axis:
        axes = step_text.by_axis(summary.exposed_seconds_by_axis, summary.hidden_seconds_by_axis)
        yield "exposed", axes
    if summary.slowest_rank_share is not None:
        yield "skew", step_text.straggler(found)
    for line in step_text.findings(found):
        yield "anatomy", line
    for row in found["gaps"][:1]:
        yield "longest gap", step_text.gap(row)


def _host(row: HostRow) -> str:
    """Means over the measured steps, memory at the most; only what was read."""
    parts = []
    if row.cpu_fraction is not None:
        parts.append(f"CPU {words.percent(row.cpu_fraction)}")
    if row.memory_used_bytes is not None:
        parts.append(f"memory {words.gib(row.memory_used_bytes)} of {words.gib(row.memory_total_bytes)}")
    if row.network_sent_bytes_per_second is not None and row.network_received_bytes_per_second is not None:
        sent, received = row.network_sent_bytes_per_second / 1e6, row.network_received_bytes_per_second / 1e6
        parts.append(f"network {sent:,.1f} MB/s sent, {received:,.1f} MB/s received")
    if row.ranks:
        parts.append(f"ranks {', '.join(map(str, row.ranks[:_SHOWN_RANKS]))}{_more(row.ranks)}")
    return "; ".join(parts) or "no reading"


def _interface(row: InterfaceRow) -> str:
    ranks = f"rank{'s' if len(row.ranks) > 1 else ''} {', '.join(map(str, row.ranks[:_SHOWN_RANKS]))}{_more(row.ranks)}"
    sent, received = row.sent_bytes_per_second / 1e6, row.received_bytes_per_second / 1e6
    text = f"{row.interface} of {ranks}: {sent:,.2f} MB/s sent, {received:,.2f} MB/s received"
    if row.rate_mbit is None:
        return text
    used = f"{words.percent(row.sent_utilization)} and {words.percent(row.received_utilization)}"
    return f"{text}; {used} of {row.rate_mbit:,g} Mbit/s"


def _more(ranks: list[int]) -> str:
    return f" and {len(ranks) - _SHOWN_RANKS:,} more" if len(ranks) > _SHOWN_RANKS else ""


def _gpu(row: GpuRow) -> str:
    parts = {
        "busy": words.percent(row.utilization),
        "tensor cores": words.percent(row.tensor_active),
        "power": f"{words.number(row.power_watts)} W (most {words.number(row.max_power_watts)} W)",
        "temperature": f"{words.number(row.max_temperature_celsius)} °C at most",
        "clocks held down by": ", ".join(
            f"{name} {words.percent(part)}" for name, part in row.throttled.items()
        ),
    }
    told = [
        f"{name} {value}" for name, value in parts.items() if value and not value.startswith(words.NOTHING)
    ]
    return ", ".join(told) or "no reading"


def _flops(summary: RunSummary) -> str:
    work, rate = _scaled(summary.model_flops_per_step), _scaled(summary.model_flops_per_second)
    if summary.mfu is None:
        return f"{work}FLOP of the model per step, {rate}FLOP/s; no MFU: {summary.mfu_reason}"
    shares = f"MFU {words.percent(summary.mfu, 1)}, HFU {words.percent(summary.hfu, 1)}"
    peak = f"{_scaled(summary.peak_flops)}FLOP/s a device: {summary.peak_source}"
    return f"{work}FLOP of the model per step, {rate}FLOP/s; {shares} ({peak})"


def _scaled(value: float | None) -> str:
    """A number of operations in front of its unit: "1.43 P", "989.5 T"."""
    if value is None:
        return f"{words.NOTHING} "
    letter, size = next(((name, size) for name, size in _PREFIXES if value >= size), ("", 1.0))
    return f"{value / size:,.4g} {letter}"


def _bracket(low: str, high: str) -> str:
    return f" (95 %: {low} to {high})"


def _phases(phases: dict[str, float]) -> Iterator[str]:
    whole = sum(phases.values())
    for name, seconds in sorted(phases.items(), key=lambda item: -item[1]):
        if whole and seconds / whole >= 0.005:
            yield f"{words.spoken(name)} {words.seconds(seconds)} ({words.percent(seconds / whole)})"


def _reasons(summary: RunSummary) -> Iterator[str]:
    """Why cells of the table are empty."""
    if summary.peak_bandwidth_reason:
        yield f"percent of peak: {summary.peak_bandwidth_reason}"
    if summary.message_seconds_reason:
        yield f"time of {summary.message_seconds_reason}"


def _collectives(summary: RunSummary) -> Table:
    from rich.table import Table

    table = Table(
        "axis", "operation", title="communication per step and rank", title_justify="left", box=None
    )
    for name in ("calls", "bytes", "wire bytes", "time", "exposed", "bus bandwidth", "of peak", "expected"):
        table.add_column(name, justify="right")
    for row in summary.communication:
        rate = "—" if row.bus_bandwidth is None else f"{row.bus_bandwidth / 1e9:.3f} GB/s"
        times = (words.seconds(row.seconds), words.seconds(row.exposed_seconds))
        sizes = (words.gib(row.bytes), words.gib(row.wire_bytes))
        beside = (words.percent(row.peak_fraction), words.seconds(row.expected_seconds))
        table.add_row(row.axis, row.operation, f"{row.calls:g}", *sizes, *times, rate, *beside)
    return table
