"""``train`` and ``run``: one run of ours, and one of any other job, recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json, More, Sets

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from engine.launch.job.follow import JobResult
    from workbench.home.runs import RunView

#: Of ``run``: options end where the command begins, with or without ``--``.
RUN_SETTINGS = {"allow_interspersed_args": False}


class JobCode(int):
    """An exit code that is the job's, whatever it is."""


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML or JSON file with the configuration of a run.")
    ],
    home: Home,
    more: More = None,
    sets: Sets = None,
    data: Annotated[
        str | None, typer.Option("--data", help="A UTF-8 text file or folder to train on.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")] = None,
    *,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue from a run's last checkpoint, in any layout: ID or folder.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Train one configuration and report its speed, losses, and where the time went."""
    from workbench.home.compaction import compact_at_end
    from workbench.home.inputs import run_config
    from workbench.text.output import stdout_for_results

    origin = None if resume is None else _origin(home, resume)
    configuration = run_config(config, [*(sets or []), *(more or [])], data, device, origin)
    with stdout_for_results():
        view = _run(home, configuration)
    _report(view, json)
    compact_at_end([view.folder])
    return 0 if view.outcome == "completed" else 1


def _report(view: RunView, json: bool) -> None:
    if json:
        from workbench.home.runs import document
        from workbench.text.output import emit_json

        emit_json(document(view))
    else:
        from workbench.terminal.run import print_run
        from workbench.text.output import result_console

        print_run(result_console(), view)


def _origin(home: Path, text: str) -> Path:
    """The folder of the run to continue, or the checkpoint that was named itself."""
    from engine.config.errors import InputError
    from workbench.home.resolve import resolve

    folder = Path(text).expanduser()
    if folder.is_dir() and ("/" in text or not (home / text).exists()):
        return folder.absolute()
    target = resolve(home, text)
    if target.kind != "run":
        raise InputError("--resume", text, "is a study; give one of its runs")
    return target.folder


def _run(home: Path, config: RunConfig) -> RunView:
    from engine.session import Session
    from tuning.execution.signals import Interruption
    from workbench.home.runs import load
    from workbench.terminal.progress import RunProgress

    with (
        Interruption() as interruption,
        Session(home) as session,
        RunProgress(None if config.train.seconds else config.train.steps, interruption) as progress,
    ):
        try:
            session.execute(config, {"purpose": "train"}, progress.should_stop, progress.follow)
        except KeyboardInterrupt:
            if progress.folder is None:
                raise
            _note_killed(progress.folder, config)
    assert progress.folder is not None
    return load(progress.folder)


def _note_killed(folder: Path, config: RunConfig) -> None:
    from engine.lifecycle import finish
    from engine.run.outcome import Ending, RunOutcome
    from engine.run.run_folder import RunStatus

    backend = str(RunStatus.from_folder(folder).backend)
    finish(folder, config, backend, RunOutcome(Ending.STOPPED, "killed by a second Ctrl-C"))


def run(
    home: Home,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="What starts the job, for example: torchrun train.py"),
    ] = None,
    hang: Annotated[
        float,
        typer.Option(
            "--hang-after",
            min=1.0,
            metavar="SECONDS",
            help="Say so when a rank has made no step for so long; nothing is ended.",
        ),
    ] = 300.0,
    json: Json = False,
) -> int:
    """Record any job of PyTorch as it is: steps, collectives, memory, GPUs and host. The exit code is the job's."""
    from engine.launch.job import follow
    from tuning.execution.signals import Interruption
    from workbench.home.compaction import compact_at_end
    from workbench.text.output import say

    outputs = (sys.stderr.buffer, sys.stderr.buffer) if json else (sys.stdout.buffer, sys.stderr.buffer)
    with Interruption() as interruption:
        watcher = follow.Watcher(lambda: interruption.seen, say, outputs, hang)
        ended = follow.run(home, command or [], watcher)
    _report_job(ended, json)
    compact_at_end([ended.folder])
    return JobCode(ended.code)


def _report_job(ended: JobResult, json: bool) -> None:
    """On stderr for people: stdout is the job's."""
    from workbench.home.runs import document, load

    view = load(ended.folder)
    if json:
        from workbench.text.output import emit_json

        emit_json(document(view))
        return
    from workbench.terminal.run import print_run
    from workbench.text.output import report_console

    print_run(report_console(), view)
