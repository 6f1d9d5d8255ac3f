"""``compare``: two to eight runs or trials side by side.

``quality``: what a lossy setting does to the loss, beside the exact run of the same seed and data.

``sensitivity``: which knobs of a study mattered, and what each neighbour of its winner loses.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json

if TYPE_CHECKING:
    from pathlib import Path

    from tuning.spec.study_file import StudyFile
    from tuning.storage.study_folder import StudyView
    from workbench.home.runs import RunView

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A lossy run: its id, a unique prefix, or its last part.")
]


def compare(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID ID ...",
            help="Two to eight runs, trials as STUDY:NUMBER, or studies for their best runs.",
        ),
    ],
    home: Home,
    json: Json = False,
) -> int:
    """Compare runs: what differs in their configurations, where their steps differ, and whether it is real."""
    from workbench.analysis.compare import compare as compared
    from workbench.analysis.compare import find_runs
    from workbench.home import runs
    from workbench.home.runs import add_numbers_so_far
    from workbench.terminal.compare import print_comparison
    from workbench.text.output import emit_json, result_console

    views = [add_numbers_so_far(runs.load(target.folder)) for target in find_runs(home, ids)]
    comparison = compared(home, views)
    if json:
        emit_json(comparison.as_dict())
    else:
        print_comparison(result_console(), comparison)
    return 0


def quality(
    run: Run,
    home: Home,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="RUN", help="The exact run; default: one with the same configuration."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Compare a lossy or late setting with the exact baseline: held-out loss by steps, seconds and bytes."""
    from workbench.analysis.quality import report
    from workbench.terminal.quality import print_quality
    from workbench.text.output import emit_json, result_console

    chosen = None if baseline is None else _quality_view(home, "--baseline", baseline)
    comparison = report(home, _quality_view(home, "RUN", run), chosen)
    if json:
        emit_json(comparison)
    else:
        print_quality(result_console(), comparison)
    return 0


def _quality_view(home: Path, field: str, text: str) -> RunView:
    from engine.config.errors import InputError
    from workbench.home import runs
    from workbench.home.resolve import resolve
    from workbench.home.runs import add_numbers_so_far

    target = resolve(home, text)
    if target.kind != "run":
        raise InputError(field, text, "is a study; give one of its runs")
    return add_numbers_so_far(runs.load(target.folder))


Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study: its name or a unique prefix.")]


class Way(StrEnum):
    """How importance is told."""

    PEDANOVA = "pedanova"
    FANOVA = "fanova"
    SHAP = "shap"


def sensitivity(
    study: Study,
    home: Home,
    method: Annotated[
        Way,
        typer.Option(
            "--method",
            help="pedanova takes a moment; fanova and shap need an extra and are kept in the study's folder.",
        ),
    ] = Way.PEDANOVA,
    limit: Annotated[
        float, typer.Option("--limit", min=1.0, metavar="SECONDS", help="Time limit for fanova and shap.")
    ] = 300.0,
    json: Json = False,
) -> int:
    """Show what mattered in a study: importance, SHAP, dependence on each knob, and the winner's neighbours."""
    from tuning.sensitivity.importance import importance
    from tuning.sensitivity.report import document
    from workbench.terminal.sensitivity import print_sensitivity
    from workbench.text.output import emit_json, result_console

    view, file = _sensitivity_view(home, study)
    if method is not Way.PEDANOVA:
        _work_out(view, method, limit)
    report = document(view, importance(view.journal, file.search_space))
    if json:
        emit_json(report.as_dict())
    else:
        print_sensitivity(result_console(), report)
    return 0


def _work_out(view: StudyView, method: Way, limit: float) -> None:
    from tuning.sensitivity import data, job
    from tuning.sensitivity.job import SENSITIVITY_METHODS
    from workbench.terminal.progress import SensitivityProgress

    chosen = next(name for name in SENSITIVITY_METHODS if name == method.value)
    request = job.AnalysisRequest(view.folder, chosen, data.ended_trials(view.journal), limit)
    with SensitivityProgress(chosen) as progress:
        job.outcome(request, progress.update)


def _sensitivity_view(home: Path, study: str) -> tuple[StudyView, StudyFile]:
    from engine.config.errors import InputError
    from tuning.storage.study_folder import StudyReader
    from workbench.home.resolve import resolve

    target = resolve(home, study)
    if target.kind != "study":
        raise InputError("STUDY", study, "is a run; give the study that it belongs to")
    view = StudyReader(target.folder).view()
    if view.file is None:
        raise InputError("STUDY", study, "its file cannot be read by this version")
    return view, view.file
