"""``train``: one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json, More, Sets

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from workbench.home.runs import RunView


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
        RunProgress(config.train.steps, interruption) as shown,
    ):
        try:
            session.execute(config, {"purpose": "train"}, shown.should_stop, shown.follow)
        except KeyboardInterrupt:
            if shown.folder is None:
                raise
            _note_killed(shown.folder, config)
    assert shown.folder is not None
    return load(shown.folder)


def _note_killed(folder: Path, config: RunConfig) -> None:
    from engine.lifecycle import finish
    from engine.run.outcome import Ending, RunOutcome
    from engine.run.run_folder import RunStatus

    backend = str(RunStatus.of(folder).backend)
    finish(folder, config, backend, RunOutcome(Ending.STOPPED, "killed by a second Ctrl-C"))
