"""``records`` and ``prune``: a run's records to take away, and the room that old ones take."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json


class Form(StrEnum):
    """What records can be written as."""

    PARQUET = "parquet"


def records(
    identity: Id,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    home: Home,
    to: Annotated[Form, typer.Option("--to", help="The format.")] = Form.PARQUET,
    json: Json = False,
) -> int:
    """Write all records of a run as tables, one file per stream; of a study, those of its best run."""
    from workbench.export import parquet
    from workbench.output import emit_json, say
    from workbench.resolve import resolve
    from workbench.studies import best_run

    asked = resolve(home, identity)
    run = best_run(home, asked)
    if asked.kind == "study":
        say(f"{asked.id} is a study; taking its best run {run.id}")
    out = out.expanduser().absolute()
    made = parquet.export(run.folder, out)
    if json:
        emit_json({"run": run.id, "study": asked.id if asked.kind == "study" else None, "to": to.value,
                   "out": str(out), "records": made})  # fmt: skip
    else:
        print(
            f"{sum(made.values()):,} records of {run.id} are in {out}: {', '.join(made) or 'there were none'}"
        )
    return 0


def prune(
    home: Home,
    older: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Runs that ended before: 12h, 30d, 8w.")
    ] = None,
    larger: Annotated[
        str | None,
        typer.Option(
            "--larger-than",
            metavar="SIZE",
            help="The oldest runs, until the rest has this size: 500MB, 20GB.",
        ),
    ] = None,
    checkpoints: Annotated[
        bool,
        typer.Option("--checkpoints", help="Count and remove checkpoints too; they cannot be made again."),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; without this, only show what would go.")
    ] = False,
    json: Json = False,
) -> int:
    """Free space: records and logs of old runs go, results stay; others are compacted. Never of a run that goes on."""
    from workbench import prune as pruning
    from workbench.output import emit_json, say

    limits = pruning.limits(older, larger, checkpoints)
    done = pruning.prune(home, limits, apply)
    for note in done.notes:
        say(f"note: {note}")
    if json:
        emit_json({"home": str(home)} | asdict(done))
        return 0
    for run in done.runs:
        print(f"{run.id}  {run.bytes / 1e6:,.1f} MB  {run.reason}")
    print(pruning.result_line(done))
    return 0
