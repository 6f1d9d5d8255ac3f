"""``study export`` and ``study import``: a whole study as one file to take elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json

app = typer.Typer(
    name="study",
    help="A whole study as one file: take it elsewhere, look at it, go on.",
    no_args_is_help=True,
)


@app.command(name="export")
def export_study(
    identity: Id,
    home: Home,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="A file that does not exist yet.", show_default="NAME.study.zip"
        ),
    ] = None,
    with_records: Annotated[
        bool, typer.Option("--with-records", help="Also what its runs recorded and logged, which is large.")
    ] = False,
    json: Json = False,
) -> int:
    """Write a study, with all its trials and what it continues, as one file. It may go on meanwhile."""
    from engine.config.errors import InputError
    from workbench.output import emit_json, say
    from workbench.portable import packing
    from workbench.portable.left_out import spoken
    from workbench.resolve import resolve

    asked = resolve(home, identity)
    if asked.kind != "study":
        raise InputError("id", asked.id, "is a run; give a study (one run's settings: workbench export)")
    out = (file or Path(asked.id + packing.SUFFIX)).expanduser().absolute()
    packed = packing.pack(home, asked.id, out, with_records)
    size = out.stat().st_size
    if json:
        emit_json({"file": str(out), "bytes": size} | packed.document())
        return 0
    for line in packed.left_out:
        say(f"left out: {line}")
    print(f"{packed.study}, {packed.trials} trials and {packed.runs} runs, is in {out} ({spoken(size)})")
    print(f"elsewhere: workbench study import {out.name}")
    return 0


@app.command(name="import")
def import_study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `workbench study export` wrote.")],
    home: Home,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="OTHER", help="The study's name from now on.", show_default="as it was"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Bring a study back from its file: checked as a whole first, and never over one that is here."""
    from tuning.storage.study_folder import STUDY_GIVEN
    from workbench.output import emit_json, say
    from workbench.portable import unpacking

    done = unpacking.unpack(home, file.expanduser().absolute(), name)
    if json:
        emit_json({"file": str(file), "home": str(home)} | done.document())
        return 0
    for line in done.notes:
        say(f"note: {line}")
    here = f" ({done.runs_here_before} of them were here already)" if done.runs_here_before else ""
    print(f"{done.study}, {done.trials} trials and {done.runs} runs{here}, is in {home}")
    print(f"go on with: workbench tune {Path(done.folder) / STUDY_GIVEN}")
    return 0
