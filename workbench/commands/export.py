"""``export``: the winner as files for another trainer; ``import``: another trainer's file as a configuration.

``report``: a run or a study as one HTML file.

``records`` and ``prune``: a run's records to take away, and the room that old ones take.

``study export`` and ``study import``: a whole study as one file to take elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engine.config.errors import several
from workbench.commands.options import Home, Id, Json, More, Sets


def export(
    identity: Id,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="What trains it: {names}.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    home: Home,
    json: Json = False,
) -> int:
    """Write a run's configuration with a script that trains it again; for a study, that of the run it recommends."""
    from workbench.analysis.studies import run_to_export
    from workbench.export import bundle
    from workbench.export.targets import find_target
    from workbench.home.resolve import resolve
    from workbench.text.output import emit_json, say

    target = find_target(to)
    source = resolve(home, identity)
    run, study, description = run_to_export(home, source)
    if source.kind == "study":
        say(f"{source.id} is a study; exporting {description}")
    bundle_of_run = target.render(run, study)
    out = out.expanduser().absolute()
    bundle.write(bundle_of_run, out)
    if json:
        emit_json({"run": run.id, "study": source.id if source.kind == "study" else None, "target": to,
                   "out": str(out), "files": sorted(bundle_of_run.files), **target.facts(bundle_of_run)})  # fmt: skip
        return 0
    for row in bundle_of_run.unexpressed:
        say(f"not in it: {row.line}")
    print(f"{run.id} exported to {out}; train it with {out / target.start}")
    return 0


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trainer's own configuration file.")],
    more: More = None,
    sets: Sets = None,
    form: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Whose file it is, where that is not clear.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, help="Ranks that it is for, if it does not say so. [default: 1]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="YAML", help="A file that does not exist yet; default: stdout."),
    ] = None,
    json: Json = False,
) -> int:
    """Make a configuration of another trainer's file, to train it or as the base of a study."""
    import yaml

    from workbench.export import importing
    from workbench.home.inputs import assignments
    from workbench.text.output import emit_json, say

    values = assignments([*(sets or []), *(more or [])])
    config_read = importing.read(file.expanduser(), form, ranks, values)
    text = yaml.safe_dump(importing.tree(config_read.values), sort_keys=False)
    if out is not None:
        importing.write(text, out.expanduser())
    if json:
        emit_json(config_read.document() | {"out": None if out is None else str(out)})
        return 0
    for key, value in config_read.left_out.items():
        say(f"left out: {key}={value} is no setting here")
    if out is None:
        print(text, end="")
    else:
        read_as = f"{config_read.format}, {several(config_read.ranks, 'ranks')}"
        print(f"{file} ({read_as}) is in {out}; try it with: workbench train {out}")
    return 0


def report(
    identity: Id,
    home: Home,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="A file that does not exist yet.", show_default="ID.html"),
    ] = None,
    json: Json = False,
) -> int:
    """Write a run or a study as one HTML file with all figures, which opens without a network."""
    from workbench.home.resolve import resolve
    from workbench.services.report import write_report
    from workbench.text.output import emit_json

    target = resolve(home, identity)
    path = write_report(home, target, out)
    if json:
        emit_json({"id": target.id, "kind": target.kind, "file": str(path), "bytes": path.stat().st_size})
    else:
        print(f"the report of {target.id} is in {path}; open it in a browser")
    return 0


def target_names() -> list[str]:
    """All that ``export --to`` can be."""
    from workbench.export.targets import TARGETS

    return [target.name for target in TARGETS]


class RecordFormat(StrEnum):
    """What records can be written as."""

    PARQUET = "parquet"


def records(
    identity: Id,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    home: Home,
    to: Annotated[
        RecordFormat, typer.Option("--to", help="Format of the tables; so far only Parquet.")
    ] = RecordFormat.PARQUET,
    json: Json = False,
) -> int:
    """Write all records of a run as tables, one file per stream; for a study, those of its best run."""
    from workbench.analysis.studies import best_run
    from workbench.export import parquet
    from workbench.home.resolve import resolve
    from workbench.text.output import emit_json, say

    source = resolve(home, identity)
    run = best_run(home, source)
    if source.kind == "study":
        say(f"{source.id} is a study; taking its best run {run.id}")
    out = out.expanduser().absolute()
    counts = parquet.export(run.folder, out)
    if json:
        emit_json({"run": run.id, "study": source.id if source.kind == "study" else None, "to": to.value,
                   "out": str(out), "records": counts})  # fmt: skip
    else:
        print(
            f"{sum(counts.values()):,} records of {run.id} are in {out}: {', '.join(counts) or 'there were none'}"
        )
    return 0


def prune(
    home: Home,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Runs that ended longer ago than this: 12h, 30d, 8w."
        ),
    ] = None,
    larger: Annotated[
        str | None,
        typer.Option(
            "--larger-than",
            metavar="SIZE",
            help="The oldest runs, until the others take at most this much: 500MB, 20GB.",
        ),
    ] = None,
    checkpoints: Annotated[
        bool,
        typer.Option("--checkpoints", help="Also remove checkpoints, which cannot be made again."),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove and compact; without this, only show what would be done.")
    ] = False,
    json: Json = False,
) -> int:
    """Free disk space: remove records and logs of old runs, compact others, and keep all results."""
    from workbench.home import maintenance as pruning
    from workbench.text.output import emit_json, say

    limits = pruning.limits(older, larger, checkpoints)
    result = pruning.prune(home, limits, apply)
    for note in result.notes:
        say(f"note: {note}")
    if json:
        emit_json({"home": str(home)} | asdict(result))
        return 0
    for run in result.runs:
        print(f"{run.id}  {run.bytes / 1e6:,.1f} MB  {run.reason}")
    print(pruning.result_line(result))
    return 0


app = typer.Typer(
    name="study",
    help="Export a whole study as one file, and import it elsewhere to look at it or to continue it.",
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
        bool,
        typer.Option("--with-records", help="Include the records and logs of its runs, which are large."),
    ] = False,
    json: Json = False,
) -> int:
    """Write a study, with all its trials and the studies it continues, to one file. It may keep running."""
    from engine.config.errors import InputError
    from workbench.home.resolve import resolve
    from workbench.home.transfer import export_study as packing
    from workbench.home.transfer.export_study import size_words
    from workbench.text.output import emit_json, say

    study = resolve(home, identity)
    if study.kind != "study":
        raise InputError("id", study.id, "is a run; give a study (one run's settings: workbench export)")
    out = (file or Path(study.id + packing.SUFFIX)).expanduser().absolute()
    result = packing.pack(home, study.id, out, with_records)
    size = out.stat().st_size
    if json:
        emit_json({"file": str(out), "bytes": size} | result.document())
        return 0
    for line in result.left_out:
        say(f"left out: {line}")
    trials, runs = several(result.trials, "trials"), several(result.runs, "runs")
    print(f"{result.study}, {trials} and {runs}, is in {out} ({size_words(size)})")
    print(f"elsewhere: workbench study import {out.name}")
    return 0


@app.command(name="import")
def import_study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `workbench study export` wrote.")],
    home: Home,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="OTHER", help="New name of the study.", show_default="unchanged"),
    ] = None,
    json: Json = False,
) -> int:
    """Import a study from its file. The file is checked first, and no existing study is overwritten."""
    from tuning.storage.study_folder import STUDY_GIVEN
    from workbench.home.transfer import import_study as unpacking
    from workbench.text.output import emit_json, say

    result = unpacking.unpack(home, file.expanduser().absolute(), name)
    if json:
        emit_json({"file": str(file), "home": str(home)} | result.document())
        return 0
    for line in result.notes:
        say(f"note: {line}")
    note = f" ({result.runs_here_before} of them were here already)" if result.runs_here_before else ""
    print(
        f"{result.study}, {several(result.trials, 'trials')} and {several(result.runs, 'runs')}{note}, is in {home}"
    )
    print(f"continue it with: workbench tune {Path(result.folder) / STUDY_GIVEN}")
    return 0
