"""``tune``: a study, headless; ``live attach``: a study of a run that is going already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Id, Json, More, Sets

if TYPE_CHECKING:
    from tuning.controllers.status import Update
    from tuning.execution.device_slices import Slice
    from tuning.execution.executor import Execute
    from tuning.execution.live.starter import Starter
    from tuning.report.study_result import StudyResult
    from tuning.spec.study_file import StudyFile
    from workbench.analysis.studies import StudyDocument


Join = Annotated[bool, typer.Option("--join", help="Join the controllers that already run this study.")]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="postgresql://USER@HOST/DATABASE",
        envvar="WORKBENCH_STORAGE",
        help="Keep the study in PostgreSQL: controllers on several hosts share it.",
    ),
]
SideBySide = Annotated[
    int | None,
    typer.Option("--side-by-side", min=1, help="Measure this many trials at once, each on its own devices."),
]


Live = Annotated[
    bool,
    typer.Option(
        "--live", help="Tune one run while it goes: trials are windows of its steps (`live` in the file)."
    ),
]


Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="'COMMAND ...'",
        help="Tune this command, which starts a trainer of your own: no file is needed.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what a study of a command would run, and run nothing.")
]


def tune(
    home: Home,
    study: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY.yaml",
            help="A study file (name, ranks, base, space; or name, trainer), or a sweep file of W&B or trackio.",
        ),
    ] = None,
    more: More = None,
    sets: Sets = None,
    *,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Number of trials in the whole study.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="A UTF-8 text file or folder to train on.")
    ] = None,
    join: Join = False,
    storage: Storage = None,
    side_by_side: SideBySide = None,
    live: Live = False,
    command: Command = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Search for the fastest configuration. The same command continues a study that was interrupted."""
    side_by_side_line = [] if side_by_side is None else [f"side_by_side={side_by_side}"]
    file = _read_study(study, command, [*(sets or []), *(more or []), *side_by_side_line], trials, data)
    if file.trainer is not None:
        return _tune_command(home, file, json, dry_run, join, storage)
    if dry_run:
        raise _no_command("--dry-run", "shows what a study of a command would run; leave it out")
    if live and file.live is None:
        file = file.tune_live()
    if file.live is not None:
        _check_alone(join, storage)
    return search_and_report(home, file, json, join, storage)


def _read_study(
    study: Path | None, command: str | None, sets: list[str], trials: int | None, data: str | None
) -> StudyFile:
    """The study of a file, or of a command, beside which the first word is a KEY=VALUE."""
    from workbench.home.inputs import study_file, study_of_command

    if command is None:
        if study is None:
            raise _no_command(
                "STUDY.yaml", "is missing; give a study file, or --command 'torchrun ... train.py'"
            )
        return study_file(study, sets, trials, data)
    if data is not None:
        raise _no_command("--data", "is the trainer's own affair; put it into the command")
    if study is not None and "=" not in str(study):
        raise _no_command("--command", f"and {study} are both given; the file may have a trainer section")
    return study_of_command(command, None, [*([str(study)] if study else []), *sets], trials)


def _no_command(field: str, remedy: str) -> Exception:
    from engine.config.errors import InputError

    return InputError(field, None, remedy)


def _tune_command(
    home: Path, file: StudyFile, json: bool, dry_run: bool, join: bool, storage: str | None
) -> int:
    """Show what a study of a command will run, and run it unless that is all."""
    from workbench.text.command_plan import plan, plan_lines
    from workbench.text.output import emit_json, say

    if join:
        raise _no_command("--join", "would run trials of a command at once on the same devices; leave it out")
    if dry_run:
        if json:
            emit_json(plan(file))
        else:
            print("\n".join(plan_lines(file)))
        return 0
    for line in plan_lines(file):
        say(line)
    return search_and_report(home, file, json, join, storage)


def _check_alone(join: bool, storage: str | None) -> None:
    """One controller turns a run; its study is in the home that has the run."""
    from engine.config.errors import InputError

    for key, value in {"join": join or None, "storage": storage}.items():
        if value is not None:
            remedy = "a live study has one run, and one controller turns it; leave it out"
            raise InputError(key, value, remedy)


def search_and_report(
    home: Path,
    file: StudyFile,
    json: bool,
    join: bool = False,
    storage: str | None = None,
    attached_run: str | None = None,
) -> int:
    """Search, print what it came to, and say whether there is a best; ``attached_run`` is the run that is tuned."""
    from workbench.terminal.study import print_result
    from workbench.text.output import emit_json, result_console, stdout_for_results

    with stdout_for_results():
        document = _run(home, file, join, storage, attached_run)
    if json:
        emit_json(document.as_dict())
    else:
        print_result(result_console(), document)
    return 0 if document.result.state == "ended" and document.result.best else 1


def _other_executor(home: Path, file: StudyFile) -> Execute | None:
    """What runs the trials of a command, or plays those of a study on a model of a cluster; None where ranks run."""
    if file.trainer is not None:
        from tuning.execution.command.trial import CommandTrials

        return CommandTrials(home, file)
    if file.simulate is None:
        return None
    from tuning.execution.simulated_machine import Simulation

    return Simulation(home, file.simulate.cluster, file.simulate.noise)


def _slices(file: StudyFile, folder: Path, join: bool, storage: str | None) -> list[Slice]:
    """The devices of each controller; none where there is one, which has all."""
    from engine.config.errors import InputError
    from tuning.execution import device_slices
    from tuning.spec.terms import most_ranks

    if file.side_by_side is None or file.side_by_side == 1:
        return []
    if storage is not None:
        remedy = "controllers of a study in a database need a home each; give 1, or leave out --storage"
        raise InputError(device_slices.FIELD, file.side_by_side, remedy)
    if join:
        device_slices.check_alone(folder, file.side_by_side)
    ranks = most_ranks(file.knobs, file.ranks)
    return device_slices.slices(file.side_by_side, ranks, file.config, file.simulate is not None)


def _run(
    home: Path, file: StudyFile, join: bool, storage: str | None, attached_run: str | None
) -> StudyDocument:
    from tuning.spec import terms
    from tuning.storage.journal import TURN, FileLock
    from tuning.storage.study_folder import STUDIES
    from workbench.analysis import automatic_choices, command_report, live_report, winner_explanation
    from workbench.analysis.studies import StudyDocument
    from workbench.home.compaction import compact_at_end
    from workbench.home.store import Store
    from workbench.home.transfer import atomic_import
    from workbench.text.output import say

    atomic_import.finish(home)
    terms.check_environment_here(file.config, file.knobs, file.ranks, file.simulate is not None)
    result = _search(home, file, join, storage, attached_run)
    if result.state == "ended":
        with FileLock(home / STUDIES / file.name / TURN):  # others may end now, too
            compact_at_end(home / run.id for run in Store(home).runs(file.name))
    if result.state == "interrupted":
        say(f"interrupted; the same command continues study {file.name}")
    report = live_report.report_live_study(home / STUDIES / file.name, result)
    command_text = command_report.report_command(file, result)
    picks = automatic_choices.explain_choices(result, file, home)
    return StudyDocument(
        result,
        None,
        winner_explanation.explain_winner(result, home),
        live=report,
        command=command_text,
        picks=picks,
    )


def _search(
    home: Path, file: StudyFile, join: bool, storage: str | None, attached_run: str | None
) -> StudyResult:
    from engine.session import Session
    from tuning.execution import preflight
    from tuning.storage.study_folder import STUDIES
    from tuning.study import run_study
    from workbench.services.controllers import Children
    from workbench.services.predictions import prior_maker
    from workbench.terminal.progress import StudyProgress

    folder = home / STUDIES / file.name
    if file.live is not None:
        return _search_live(home, file, attached_run)
    parts = _slices(file, folder, join, storage)
    if parts:
        parts.pop(0).take()
    started = Session(home, fresh_on_cpu=True) if preflight.weighs_memory(file) else Session(home)
    controllers = Children(home, file.name, parts)
    with controllers as children, started as session, StudyProgress(file) as progress:
        execute = _other_executor(home, file) or session.execute
        make_prior = prior_maker(home, file)

        def update(study_update: Update) -> None:
            children.start()
            progress.update(study_update)

        result = run_study(file, folder, execute, update, make_prior, join, storage)
        children.close(ended=result.state == "ended")
    return result


def _search_live(home: Path, file: StudyFile, attached_run: str | None) -> StudyResult:
    """Search on a run; one that the study began trains on to its end with what was found, an ``attached_run`` is left
    with it. Ctrl-C stops a run of the study's own, with a checkpoint.
    """
    from tuning.execution.live.exploitation import final_config, run_to_the_end, windows_of
    from tuning.execution.signals import Interruption
    from tuning.storage.study_folder import STUDIES, STUDY
    from tuning.study import run_study
    from workbench.analysis import studies
    from workbench.services.predictions import prior_maker
    from workbench.terminal.progress import LiveProgress, StudyProgress

    assert file.live is not None
    file = _newest(home, file)
    live = file.live
    assert live is not None
    folder = home / STUDIES / file.name
    recorded = studies.document(folder) if (folder / STUDY).is_file() else None
    before, exact_best = (recorded.live, recorded.result.best_exact) if recorded else (None, None)
    windows = windows_of(home, file, attached_run, before.baseline_step_seconds if before else None)
    starter = windows.starter
    if exact_best is not None and exact_best.value is not None:
        first = recorded.result.baseline if recorded else None
        usual = file.search_space.config(exact_best.config)
        windows.remember(usual, exact_best.value, exact_best.trial, first.trial if first else None)

    def search() -> StudyResult:
        with StudyProgress(file) as progress:
            return run_study(file, folder, windows, progress.update, prior_maker(home, file))

    @contextmanager
    def looking() -> Iterator[Callable[[], bool]]:
        with Interruption() as interruption, LiveProgress(starter, live.steps, interruption) as progress:
            yield progress.should_stop

    if attached_run is not None:
        result = search()
        best = final_config(windows, file, result)
        if not starter.was_left:
            windows.leave(best, file.name)
        return result
    result, changed = run_to_the_end(windows, file, search, looking)
    return _look_again(home, file, result, changed, starter) if changed else result


def _newest(home: Path, file: StudyFile) -> StudyFile:
    """The last of the searches that followed this one on its run."""
    from tuning.spec import study_file
    from tuning.storage.study_folder import STUDIES, STUDY_GIVEN

    while (given_file := home / STUDIES / file.following / STUDY_GIVEN).is_file():
        file = study_file.load(given_file)
    return file


def _look_again(
    home: Path, file: StudyFile, result: StudyResult, changed: str, starter: Starter
) -> StudyResult:
    """Conditions changed: another search on the same run, with what was best first."""
    from tuning.execution.live.pinned_values import PinnedValues
    from tuning.storage.study_folder import STUDIES
    from workbench.text.output import say

    leader = result.best.config if result.best else file.search_space.baseline[0]
    by_hand = PinnedValues(home / STUDIES / file.name).values
    leader = leader | by_hand
    following = file.looking_again(leader)
    say(f"{changed}: looking again, as study {following.name}")
    folder = home / STUDIES / following.name
    folder.mkdir(parents=True, exist_ok=True)
    PinnedValues(folder).hold(by_hand)
    starter.hand_over(folder)
    return _search_live(home, following, None)


live_app = typer.Typer(name="live", no_args_is_help=True, help="Tune a run that is going already.")


@live_app.callback()
def _group() -> None:
    """One command so far: a group all the same."""


@live_app.command()
def attach(
    identity: Id,
    home: Home,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Number of trials.")] = None,
    json: Json = False,
) -> int:
    """Search for the fastest values of what can be turned in a run, and leave it with them. Ctrl-C leaves it with the
    best so far; the same command goes on.
    """
    from workbench.home.resolve import resolve
    from workbench.services.study_of_run import study_of_run

    target = resolve(home, identity)
    return search_and_report(home, study_of_run(home, target, trials), json, attached_run=target.id)
