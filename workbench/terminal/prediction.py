"""A prediction, and a dry run, as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from engine.footprint.flops import parameters, shared_parameters, workload_of
from tuning.predict.forecast_document import WORDS, Change, Forecast
from tuning.predict.placement.place import PlacementReport
from tuning.predict.placement.signatures.mesh import compare, unknown
from tuning.predict.placement.traffic_map import TrafficMap
from tuning.predict.plan.why_not import LayoutExplanation
from workbench.terminal.run import column_table
from workbench.text import plan as text
from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from engine.config.run_config import RunConfig
    from engine.dry_run.check import DryRun
    from engine.footprint.footprint import Footprint

#: Changes that are shown, and the least share of a step that has a row of its own.
_CHANGES, _LEAST = 6, 0.005
#: What loses something is worth telling if it gains this much.
_LOSSY = 0.01
_BAR = 30


def print_forecast(
    console: Console,
    forecast: Forecast,
    placement: PlacementReport | None = None,
    traffic: TrafficMap | None = None,
) -> None:
    """Time, memory, what the step is made of, what would change it, where ranks belong, what goes over links, and what
    to know of numbers.
    """
    _head(console, forecast)
    console.print(_breakdown(forecast))
    for line in _changes(forecast):
        _line(console, line)
    for line in text.placement_lines(placement):
        _line(console, line)
    if traffic is not None:
        _line(console, text.traffic(traffic))
    if (mesh := compare(forecast.config, forecast.target)) is not None:
        _line(console, text.signatures(mesh))
        console.print(column_table("What each axis divides", text.mesh_columns(mesh)))
        _line(console, text.LIES)
    elif reason := unknown(forecast.config):
        _line(console, text.not_told(reason))
    _notes(console, forecast.notes)


def print_why_not(console: Console, explanation: LayoutExplanation) -> None:
    """Legal, fits, and how far behind: one line each."""
    if explanation.forecast is None:
        console.print("[red]not legal[/]")
    else:
        console.print(f"[green]legal[/]  {words.layout(explanation.layout)}", soft_wrap=True)
        _line(
            console,
            f"{'fits' if explanation.forecast.fits else 'does not fit safely'}: {_memory(explanation.forecast)}",
        )
        _line(console, f"step: {step(explanation.forecast)}")
    for line in _behind(explanation):
        _line(console, line)
    _notes(console, explanation.forecast.notes if explanation.forecast else ())


def step(forecast: Forecast) -> str:
    """Seconds of a step, with its range."""
    low, high = words.seconds(forecast.step_seconds.low), words.seconds(forecast.step_seconds.high)
    return f"{words.seconds(forecast.step_seconds.median)} (90 %: {low} to {high})"


def settings(values: Mapping[str, Any]) -> str:
    """Keys and values as ``--set`` takes them."""
    return " ".join(f"{key}={'null' if item is None else item}" for key, item in values.items())


def layout(forecast: Forecast) -> str:
    """Degrees and what else a plan turns, in a few words."""
    config = forecast.config
    parts = [words.layout(config.parallel.model_dump()), f"micro-batch {config.batch.micro_batch}"]
    if config.schedule.chunks > 1:
        parts.append(f"{config.schedule.chunks} stages a rank")
    if config.memory.recompute != "none":
        parts.append(f"recompute {config.memory.recompute}")
    return ", ".join(parts)


def probability(value: float) -> str:
    """Of too little memory, without digits that nobody believes."""
    return "under 1 %" if value < 0.01 else "over 99 %" if value > 0.99 else words.percent(value)


def _head(console: Console, forecast: Forecast) -> None:
    cluster = forecast.target.cluster
    console.print(
        f"[bold]{words.layout(forecast.config.parallel.model_dump())}[/] on {cluster.name} "
        f"({forecast.target.group.accelerator.name})",
        soft_wrap=True,
    )
    rows = {
        "step": step(forecast),
        "tokens/s": words.number(forecast.tokens_per_second),
        "MFU": f"{words.percent(forecast.mfu, 1)} of {forecast.peak_flops / 1e12:,.5g} TFLOP/s a device",
        "memory": _memory(forecast),
        **_outside_row(forecast),
        "limits": "; ".join(limit.words for limit in forecast.limits[:3]),
    }
    for label, value in rows.items():
        _line(console, f"  {label:<10}{value}")


def _memory(forecast: Forecast) -> str:
    limit = forecast.target.memory_bytes
    share = words.percent(forecast.memory_bytes.median / limit)
    low, high = words.gib(forecast.memory_bytes.low), words.gib(forecast.memory_bytes.high)
    return (
        f"{words.gib(forecast.memory_bytes.median)} ({low} to {high}), {share} of {words.gib(limit)}; "
        f"out of memory with {probability(forecast.out_of_memory_probability)}"
    )


def _outside_row(forecast: Forecast) -> dict[str, str]:
    """A row for what the allocator does not count; none on a CPU."""
    outside = forecast.outside
    if not outside.likely:
        return {}
    count = len(outside.communicators)
    buffers = f" and buffers of {words.several(count, 'NCCL communicators')}" if count else ""
    sizes = f"{words.gib(outside.likely)} ({words.gib(outside.low)} to {words.gib(outside.high)})"
    return {"": f"of that {sizes} outside torch's allocator: CUDA context{buffers}, believed"}


def _breakdown(forecast: Forecast) -> Table:
    from rich.table import Table

    table = Table(
        title="Where the time of a step goes",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for name in ("seconds", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    whole = sum(forecast.breakdown.values())
    for name, seconds in sorted(forecast.breakdown.items(), key=lambda item: -item[1]):
        share = seconds / whole
        if share >= _LEAST:
            table.add_row(
                WORDS[name],
                words.seconds(seconds),
                words.percent(share, 1),
                "█" * max(1, round(share * _BAR)),
            )
    return table


def _changes(forecast: Forecast) -> Iterator[str]:
    if not forecast.changes:
        yield "No neighbour of this layout fits."
        return
    yield "What would change that:"
    worth = [change for change in forecast.changes if not change.lossy or change.gain >= _LOSSY]
    for change in worth[:_CHANGES]:
        yield f"  {_gain(change)}  {settings(change.values)}{_caution(change)}"


def _gain(change: Change) -> str:
    return f"{100 * change.gain:+6.1f} % tokens/s"


def _caution(change: Change) -> str:
    return "  (lossy: see `workbench quality`)" if change.lossy else ""


def _behind(explanation: LayoutExplanation) -> Iterator[str]:
    if explanation.best is None:
        yield f"no best layout to compare with: {explanation.reason}"
        return
    yield f"the best of as many ranks and this batch: {layout(explanation.best)}: {step(explanation.best)}"
    if explanation.slower is None:
        return
    if explanation.slower <= 0:
        yield "this one is as fast, or faster by settings that plans do not turn"
        return
    terms = "; ".join(term.words for term in explanation.terms)
    yield f"{words.percent(explanation.slower, 1)} behind it: {terms}"


def _notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"  {note}", markup=False, soft_wrap=True, style="dim")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


#: Rows shown at the beginning and at the end of a long pipeline.
_SHOWN = 5
_SIZES = {"weights", "gradients", "optimizer", "activations", "buffers", "host", "total"}


def print_dry_run(console: Console, config: RunConfig, dry_run: DryRun) -> None:
    """A legal layout: a row for each kind of rank, then what the largest one holds."""
    ranks = "1 rank" if dry_run.world_size == 1 else f"{dry_run.world_size:,} ranks"
    console.print(f"[green]legal[/]  {words.layout(dry_run.layout)}, {ranks}", soft_wrap=True)
    console.print(_table(dry_run))
    for line in _lines(config, dry_run):
        console.print(line, markup=False, soft_wrap=True)
    for mismatch in dry_run.mismatches:
        console.print(f"[red]bug in the workbench[/]: {mismatch}", soft_wrap=True)


def _table(dry_run: DryRun) -> Table:
    from rich.table import Table

    assert dry_run.largest is not None
    unit, size = ("GiB", 2**30) if dry_run.largest.total_bytes >= 2**30 else ("MiB", 2**20)
    sizes = _SIZES if any(row.host_bytes for row in dry_run.stages) else _SIZES - {"host"}
    gap = 2 if len(sizes) < len(_SIZES) else 1
    title = f"{unit} on each rank at the peak of a step"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in ("stage", "ranks"):
        table.add_column(name, no_wrap=True)
    for name in ("layers", "in flight", "parameters", *_sizes_by_name(dry_run.stages[0], sizes)):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in _stage_rows(dry_run):
        table.add_row(*(_cells(rows, sizes, size) if rows else ["..."]))
    return table


def _stage_rows(dry_run: DryRun) -> Iterator[list[Footprint]]:
    """Neighbours that hold the same, in one row each; an empty one in place of many."""
    groups = [list(rows) for _, rows in groupby(dry_run.stages, _what_it_holds)]
    is_skipping = False
    for place, rows in enumerate(groups):
        is_inside = _SHOWN <= place < len(groups) - _SHOWN
        if not is_inside or dry_run.largest in rows:
            is_skipping = False
            yield rows
        elif not is_skipping:
            is_skipping = True
            yield []


def _what_it_holds(row: Footprint) -> Footprint:
    return replace(row, stages=(), rank=0)


def _sizes_by_name(row: Footprint, sizes: Collection[str]) -> dict[str, int]:
    named = {
        "weights": row.parameter_bytes,
        "gradients": row.gradient_bytes,
        "optimizer": row.optimizer_bytes,
        "activations": row.activation_bytes,
        "buffers": row.buffer_bytes,
        "host": row.host_bytes,
        "total": row.total_bytes,
    }
    return {name: size for name, size in named.items() if name in sizes}


def _cells(rows: list[Footprint], sizes: Collection[str], unit: int) -> Iterator[str]:
    first, last = rows[0], rows[-1]
    yield _stages(first.stages) if first == last else f"{_stages(first.stages)} to {_stages(last.stages)}"
    ranks = last.rank + last.ranks
    yield f"{first.rank:,} to {ranks - 1:,}" if ranks > 1 else "0"
    yield f"{first.layers:,}"
    yield f"{first.in_flight:,g}"
    yield words.count(first.parameters)
    yield from (f"{size / unit:,.2f}" for size in _sizes_by_name(first, sizes).values())


def _stages(stages: tuple[int, ...]) -> str:
    """All of few, or the first two and the last."""
    if len(stages) <= 3:
        return ", ".join(map(str, stages))
    return f"{stages[0]}, {stages[1]} ... {stages[-1]}"


def _lines(config: RunConfig, dry_run: DryRun) -> Iterator[str]:
    row = dry_run.largest
    assert row is not None
    formula = dry_run.formulas[dry_run.stages.index(row)]
    work = workload_of(config)
    model, fewer = words.count(parameters(work)), words.sharing_words(shared_parameters(work))
    yield f"Most on rank {row.rank:,}: {words.gib(row.total_bytes)}. The model has {model} parameters{fewer}."
    yield (
        f"Its activations: {words.gib(row.activation_bytes)} counted in a forward pass without numbers, "
        f"{words.gib(formula.activation_bytes)} by formula."
    )
    if row.published_bytes is not None:
        yield (
            f"A GPT of this width would keep {words.gib(row.published_bytes)} in as many layers (arXiv 2205.05198, "
            "table 2: 34 s b h / t a layer, or 2 s b h if recomputed; embedding and logits left out)."
        )
    yield "Counted as a CPU's kernels keep it; without what kernels need while they run, and the libraries' own memory."
    yield from dry_run.notes
    yield f"Checked in {words.seconds(dry_run.seconds)}."
