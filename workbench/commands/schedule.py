"""``schedule``: the order of pipeline work, as the engine executes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Json

if TYPE_CHECKING:
    from engine.parallel.schedules.actions import Plan


def schedule(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="gpipe, 1f1b, interleaved, zb_h1, ...")],
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Ranks in the pipeline.")] = 4,
    chunks: Annotated[int | None, typer.Option(min=1, help="Stages per rank.")] = None,
    micro_batches: Annotated[int, typer.Option(min=1, max=512, help="Per step.")] = 8,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it into an SVG file.")] = None,
    json: Json = False,
) -> int:
    """Show a pipeline schedule: each rank's list of actions, its bubble, and what it keeps in memory."""
    from workbench.output import emit_json
    from workbench.schedule_series import series_of

    chosen = _plan(kind, ranks, chunks, micro_batches)
    series = series_of(chosen)
    lists = {f"rank {rank}": chosen.written(rank) for rank in range(ranks)}
    if svg is not None:
        from workbench.schedule_figures import schedule_svg

        svg.write_text(schedule_svg(series), encoding="utf-8")
    if json:
        emit_json({"kind": kind, "ranks": ranks, "chunks": chosen.chunks, "micro_batches": micro_batches,
                   "rank_of": chosen.rank_of, "actions": list(lists.values()), "length_forwards": series.length,
                   "bubble_fraction": series.bubble_fraction, "in_flight": series.in_flight})  # fmt: skip
        return 0
    print(series.title)
    for name, actions in lists.items():
        print(f"  {name}: {actions}")
    return 0


def _plan(kind: str, ranks: int, chunks: int | None, micro_batches: int) -> Plan:
    """With two chunks where the kind allows more than one, and nothing else was asked for."""
    from engine.config.errors import InputError
    from engine.parallel.schedules.registry import KINDS, plan

    if kind not in KINDS:
        raise InputError("schedule.kind", kind, f"choose one of {', '.join(KINDS)}")
    chunks = chunks or (2 if 2 in KINDS[kind].chunks else 1)
    if problem := KINDS[kind].chunks_problem(chunks):
        raise InputError("schedule.chunks", chunks, problem)
    return plan(kind, ranks, chunks, micro_batches)
