"""``ls``, ``status``, ``show``, ``note`` and ``reindex``: what is in a home folder, and what people say of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.config.errors import several
from workbench.commands.options import Home, Id, Json

if TYPE_CHECKING:
    from workbench.home.resolve import Target

_SHOWN_RUNS = 40
_SHOWN_TRIALS = 100


def ls(
    home: Home,
    study: Annotated[str | None, typer.Option("--study", help="Only the runs of this study.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only what has this tag. May be given several times: it has all of them."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs, not only the newest 40.")] = False,
    json: Json = False,
) -> int:
    """List studies and runs, newest first."""
    from workbench.home.store import Store
    from workbench.text.output import emit_json, say

    store = Store(home)
    wanted = set(tag or ())
    runs = [row for row in store.runs(study) if wanted <= set(row.tags)]
    studies = [row for row in store.studies() if wanted <= set(row.tags)]
    if store.note:
        say(f"note: {store.note}")
    if json:
        rows = {"runs": [asdict(row) for row in runs], "studies": [asdict(row) for row in studies]}
        emit_json({"home": str(home)} | rows)
    elif not runs and not studies and wanted:
        say(
            f"nothing in {home} has the tag {' and '.join(sorted(wanted))}; add one with: workbench note ID --tag TAG"
        )
    elif not runs and not studies:
        say(f"no runs or studies in {home} yet; start one with: workbench train CONFIG")
    else:
        _print_lists(runs, studies, len(runs) if everything else _SHOWN_RUNS)
    return 0


def status(home: Home, json: Json = False) -> int:
    """Say what runs, who leads, what is tried now, how long it takes, and what is wrong."""
    from tuning.storage.study_folder import STUDIES, StudyReader, StudyView
    from workbench.analysis.overview import overview
    from workbench.analysis.studies import StudyDocument, view_document
    from workbench.home.notes import saved_views
    from workbench.home.store import Store
    from workbench.terminal.overview import print_overview
    from workbench.text.output import emit_json, result_console

    def load(name: str) -> tuple[StudyView, StudyDocument]:
        view = StudyReader(home / STUDIES / name).view()
        return view, view_document(view)

    document = overview(home, *Store(home).lists(), load)
    if json:
        emit_json(document.as_dict() | {"saved_views": [asdict(view) for view in saved_views(home)]})
    else:
        print_overview(result_console(), document)
    return 0


def show(
    identity: Id,
    home: Home,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="NAME=FRACTION",
            help="Apply another threshold to a run's verdicts, for example bubble=0.1. May be given several times.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Show all ranks of a run in one step instead.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, help="With --step: the collectives of this rank in that step."),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            metavar="AXIS.OPERATION.NUMBER",
            help="With --rank: one of them, for example dp.all_reduce.0, on all ranks of its group.",
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All trials of a study, not only 100.")] = False,
    json: Json = False,
) -> int:
    """Show a run or a study: what it did, how fast, and where the time went."""
    from engine.config.errors import InputError
    from workbench.home.resolve import resolve

    target = resolve(home, identity)
    if step is not None or rank is not None or call is not None:
        return _show_step(target, step, rank, call, json)
    if target.kind == "study":
        if threshold:
            raise InputError(
                "--threshold", threshold[0], "only a run has verdicts; give one of the study's runs"
            )
        return _show_study(target.folder, json, None if everything else _SHOWN_TRIALS)
    return _show_run(target.folder, json, threshold or [])


def note(
    identity: Id,
    home: Home,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The note, in place of the one before; '' takes it away."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Add a tag. May be given several times.")
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", help="Take a tag away. May be given several times.")
    ] = None,
    json: Json = False,
) -> int:
    """Write a note on a run or a study, and tag it; without either, show what stands there."""
    from workbench.home.notes import annotations_of, change_annotations
    from workbench.home.resolve import resolve
    from workbench.terminal.run import remark_lines
    from workbench.text.output import emit_json

    target = resolve(home, identity)
    changes_notes = text is not None or tag or untag
    annotations = (
        change_annotations(target.folder, text, tag or (), untag or ())
        if changes_notes
        else annotations_of(target.folder)
    )
    if json:
        emit_json({"id": target.id, "kind": target.kind} | annotations.as_dict())
    else:
        print(target.id)
        for label, words in remark_lines(annotations):
            print(f"  {label:<6}{words}")
    return 0


def reindex(home: Home, json: Json = False) -> int:
    """Rebuild the indexes (runs, studies, Optuna's databases) from the folders of runs and studies."""
    from workbench.services.reindex import reindex as rebuild
    from workbench.text.output import emit_json, say

    result = rebuild(home, say)
    for line in result.notes:
        say(f"note: {line}")
    if json:
        emit_json({"home": str(home)} | asdict(result))
    else:
        studies = "1 study" if result.studies == 1 else f"{result.studies:,} studies"
        print(f"{several(result.runs, 'runs')} and {studies} in {home}")
    return 0


def _print_lists(runs: list[Any], studies: list[Any], most: int) -> None:
    from workbench.terminal.study import print_runs, print_studies
    from workbench.text.output import result_console

    console = result_console()
    if studies:
        print_studies(console, studies)
        console.print()
    if runs:
        print_runs(console, runs[:most], len(runs) - len(runs[:most]))


def _show_step(target: Target, step: int | None, rank: int | None, call: str | None, json: bool) -> int:
    from engine.config.errors import InputError
    from workbench.records import step_view
    from workbench.terminal.step_view import print_step
    from workbench.text.output import emit_json, result_console

    if target.kind == "study":
        raise InputError(step_view.STEP, step, "only a run has steps; give one of the study's runs")
    if step is None:
        raise InputError(
            step_view.STEP, None, f"{step_view.RANK} and {step_view.CALL} are of one step: say which"
        )
    if rank is None and call is not None:
        raise InputError(step_view.RANK, None, f"{step_view.CALL} is a call of one rank: say which")
    view = step_view.step_view(target.folder, step, rank, call)
    if json:
        emit_json(view.as_dict())
    else:
        print_step(result_console(), view, call is not None)
    return 0


def _show_run(folder: Path, json: bool, thresholds: list[str]) -> int:
    from engine.run import run_folder
    from workbench.analysis.stall import stall_of
    from workbench.analysis.verdicts import rejudge
    from workbench.figures.cluster.roofline import roofline_note, roofline_of
    from workbench.home import runs
    from workbench.home.notes import annotations_of
    from workbench.home.runs import add_numbers_so_far
    from workbench.terminal.run import print_run
    from workbench.text.output import emit_json, result_console

    view = add_numbers_so_far(runs.load(folder))
    if thresholds:
        view = rejudge(view, thresholds, run_folder.read_json(folder / run_folder.CONFIG))
    roofline_reached, stall = roofline_of(view.folder, view.summary), stall_of(view)
    if json:
        record = annotations_of(folder).as_dict() | {"stall": stall and stall.as_dict()}
        emit_json(
            runs.document(view) | record | {"roofline": roofline_reached and roofline_reached.as_dict()}
        )
    else:
        print_run(result_console(), view, stall)
        # Why there is no calibration stands beside the share of the peak already.
        if roofline_reached is not None and (
            roofline_reached.fraction is not None
            or any(collective.fitted for collective in roofline_reached.collectives)
        ):
            result_console().print(roofline_note(roofline_reached), markup=False, soft_wrap=True)
    return 0


def _show_study(folder: Path, json: bool, most: int | None) -> int:
    from workbench.analysis.studies import document
    from workbench.home.notes import annotations_of
    from workbench.terminal.study import print_study
    from workbench.text.output import emit_json, result_console

    study, annotations = document(folder), annotations_of(folder)
    if json:
        emit_json(study.as_dict() | annotations.as_dict())
    else:
        print_study(result_console(), study, most, annotations)
    return 0
