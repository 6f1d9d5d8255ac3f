"""The best layouts for a cluster as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tuning.predict.forecast_document import Forecast
from tuning.predict.plan.plans import PlanResult
from tuning.predict.plan.track_record import Record
from workbench.terminal.prediction import layout, probability
from workbench.text import plan as plan_text
from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TERMS = {
    "tensor_parallel": "tp",
    "context_parallel": "cp",
    "data_parallel": "dp",
    "recomputation": "recompute",
    "messages": "pp",
}
#: Layouts of the pareto that are shown.
_FRONT = 12


def print_plan(console: Console, plan: PlanResult, record: Record | None = None) -> None:
    """The best, the pareto, a line for each family that was not taken, and how predictions of this machine held."""
    for line in _head(plan):
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        _table("Fastest layouts that fit, one for each combination of dp, tp, pp and ZeRO stage", plan.best)
    )
    for line in _placement_lines(plan):
        console.print(line, markup=False, soft_wrap=True)
    if plan.tight is not None:
        console.print(_tight(plan.tight), markup=False, soft_wrap=True)
    console.print(_table("Layouts that trade time for memory", _select_evenly(plan.pareto)))
    console.print("Why not:")
    for values in plan_text.why_not(plan.families):
        name = f"{values.axis} {values.values}:"
        console.print(f"  {name:<24}{values.reason}", markup=False, soft_wrap=True)
    if record is not None:
        console.print(plan_text.track_record_line(record), markup=False, soft_wrap=True)
    for note in plan.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True, style="dim")


def _head(plan: PlanResult) -> Iterator[str]:
    cluster, config = plan.target.cluster, plan.config
    tokens = config.batch.global_batch * config.data.sequence_length
    yield (
        f"{config.model.preset} on {plan_text.devices(cluster)}, "
        f"{config.batch.global_batch:,} sequences of {config.data.sequence_length:,} tokens a step "
        f"({words.count(tokens)}), {config.precision}"
    )
    yield f"{plan.looked_at:,} legal layouts considered, {plan.safe:,} fit safely"


def _table(title: str, rows: Sequence[Forecast]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("dp", "tp", "pp", "ZeRO", "micro", "stages"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("recompute", no_wrap=True)
    for name in ("step, s", "90 %", "MFU", "memory", "out of memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("besides products")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Forecast) -> Iterator[str]:
    config, seconds = row.config, row.step_seconds
    parallel = config.parallel
    yield from (str(degree) for degree in (parallel.dp, parallel.tp, parallel.pp, parallel.zero_stage))
    yield str(config.batch.micro_batch)
    yield f"{config.schedule.chunks} {plan_text.other_schedule(config)}".strip()
    yield config.memory.recompute
    yield f"{seconds.median:,.0f}" if seconds.median >= 1e4 else f"{seconds.median:,.4g}"
    yield f"{_short(seconds.low)} – {_short(seconds.high)}"
    yield words.percent(row.mfu)
    yield words.percent(row.memory_bytes.median / row.target.memory_bytes)
    yield probability(row.out_of_memory_probability)
    others = [limit for limit in row.limits if limit.name != "products"]
    yield ", ".join(
        f"{_TERMS.get(limit.name, limit.name)} {words.percent(limit.share)}" for limit in others[:2]
    )


def _placement_lines(plan: PlanResult) -> Iterator[str]:
    """A line for each of the best; nothing where devices are all alike."""
    rows = [
        (row, report) for row, report in zip(plan.best, plan.placements, strict=True) if report is not None
    ]
    if rows:
        yield f"Best placement of ranks on {rows[0][1].network}, with its gain over ranks in order (nothing hidden):"
    for row, report in rows:
        settings = (
            plan_text.placement_settings(report) or "placing ranks in order is as fast as any other way"
        )
        yield f"  {words.layout(row.config.parallel.model_dump())}: {100 * report.gain:+.1f} % tokens/s  {settings}"


def _short(seconds: float) -> str:
    """Three digits, and never an exponent above 1."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _tight(row: Forecast) -> str:
    needs = words.percent(row.memory_bytes.median / row.target.memory_bytes)
    return (
        f"Faster, but not safe: {layout(row)}: {words.seconds(row.step_seconds.median)}, {needs} of the memory, "
        f"out of memory with {probability(row.out_of_memory_probability)}"
    )


def _select_evenly(rows: Sequence[Forecast]) -> Sequence[Forecast]:
    """As many as are shown, the ends among them."""
    if len(rows) <= _FRONT:
        return rows
    return [rows[round(place * (len(rows) - 1) / (_FRONT - 1))] for place in range(_FRONT)]
