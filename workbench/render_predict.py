"""A dry run as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from engine.footprint.flops import parameters, workload_of
from workbench import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from engine.config.run_config import RunConfig
    from engine.dry_run.check import DryRun
    from engine.footprint.footprint import Footprint

#: Rows shown at the beginning and at the end of a long pipeline.
_SHOWN = 5
_SIZES = {"weights", "gradients", "optimizer", "activations", "buffers", "host", "total"}


def print_dry_run(console: Console, config: RunConfig, found: DryRun) -> None:
    """A legal layout: a row for each kind of rank, then what the largest one holds."""
    ranks = "1 rank" if found.world_size == 1 else f"{found.world_size:,} ranks"
    console.print(f"[green]legal[/]  {words.layout(found.layout)}, {ranks}", soft_wrap=True)
    console.print(_table(found))
    for line in _lines(config, found):
        console.print(line, markup=False, soft_wrap=True)
    for mismatch in found.mismatches:
        console.print(f"[red]mistake of ours[/]: {mismatch}", soft_wrap=True)


def _table(found: DryRun) -> Table:
    from rich.table import Table

    assert found.largest is not None
    unit, size = ("GiB", 2**30) if found.largest.total_bytes >= 2**30 else ("MiB", 2**20)
    sizes = _SIZES if any(row.host_bytes for row in found.stages) else _SIZES - {"host"}
    gap = 2 if len(sizes) < len(_SIZES) else 1
    title = f"{unit} on each rank at the peak of a step"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in ("stage", "ranks"):
        table.add_column(name, no_wrap=True)
    for name in ("layers", "in flight", "parameters", *_named(found.stages[0], sizes)):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in _shown(found):
        table.add_row(*(_cells(rows, sizes, size) if rows else ["..."]))
    return table


def _shown(found: DryRun) -> Iterator[list[Footprint]]:
    """Neighbours that hold the same, in one row each; an empty one in place of many."""
    alike = [list(rows) for _, rows in groupby(found.stages, _what_it_holds)]
    skipped = False
    for place, rows in enumerate(alike):
        is_inside = _SHOWN <= place < len(alike) - _SHOWN
        if not is_inside or found.largest in rows:
            skipped = False
            yield rows
        elif not skipped:
            skipped = True
            yield []


def _what_it_holds(row: Footprint) -> Footprint:
    return replace(row, stages=(), rank=0)


def _named(row: Footprint, sizes: Collection[str]) -> dict[str, int]:
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
    yield from (f"{size / unit:,.2f}" for size in _named(first, sizes).values())


def _stages(stages: tuple[int, ...]) -> str:
    """All of few, or the first two and the last."""
    if len(stages) <= 3:
        return ", ".join(map(str, stages))
    return f"{stages[0]}, {stages[1]} ... {stages[-1]}"


def _lines(config: RunConfig, found: DryRun) -> Iterator[str]:
    row = found.largest
    assert row is not None
    formula = found.formulas[found.stages.index(row)]
    model = words.count(parameters(workload_of(config)))
    yield f"Most on rank {row.rank:,}: {words.gib(row.total_bytes)}. The model has {model} parameters."
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
    yield from found.notes
    yield f"Checked in {words.seconds(found.seconds)}."
