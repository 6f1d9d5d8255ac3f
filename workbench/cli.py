"""The command line: assembles the commands, and turns every error into one line and an exit code.

Keeps the traceback of an error that nobody expected.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from engine.config.errors import InputError, WorkbenchError, remedy_of
from workbench.commands import (
    analyse,
    control,
    export,
    lab,
    machine,
    predict,
    selftest,
    serve,
    show,
    train,
    tune,
)
from workbench.commands.options import command_with_names
from workbench.home.settings import HOME_VARIABLE, JOBS, home_folder
from workbench.records import heap
from workbench.text.output import say


def keep_traceback(error: BaseException) -> Path:
    """Write a traceback into the home folder, or where temporary files go if that cannot be written."""
    text = f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    name = f"error-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    home = home_folder()
    folders = [home / JOBS] if home.is_dir() else []
    for folder in [*folders, Path(tempfile.gettempdir())]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            return folder / name
        except OSError:
            continue
    return Path("nowhere: no folder can be written")


GOOD, ENDED_BADLY, WRONG_INPUT = 0, 1, 2
_HELP = (
    "Measure which parallel layout, compression and overlap train a model fastest on this machine, and why."
)

app = typer.Typer(name="workbench", help=_HELP, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    machine.doctor,
    selftest.selftest,
    machine.calibrate,
    train.train,
    tune.tune,
    serve.ui,
    show.ls,
    show.status,
    show.show,
    show.note,
    control.stop,
    predict.predict,
    predict.plan,
    analyse.compare,
    analyse.quality,
    analyse.sensitivity,
    show.reindex,
    export.report,
    export.records,
    export.prune,
    serve.metrics,
):
    app.command()(command)
app.command(cls=command_with_names(export.target_names))(export.export)
app.command(cls=command_with_names(predict.schedule_names))(predict.schedule)
app.command(context_settings=train.RUN_SETTINGS)(train.run)
app.command(name="import")(export.import_file)
app.command(help=control.HELP)(control.control)
app.add_typer(lab.app)
app.add_typer(tune.live_app)
app.add_typer(export.app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(version("training-workbench"))
        raise typer.Exit


@app.callback(help=_HELP)
def global_options(
    home: Annotated[
        Path | None, typer.Option("--home", help="Where runs and studies live.", show_default=False)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What may stand before every command."""
    if home is not None:
        os.environ[HOME_VARIABLE] = str(home)


def main() -> None:
    """The console script."""
    heap.collect_seldom()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; 0 if it went well, 1 if what it ran ended badly, 2 if the input was wrong.

    A recorded job has the code that it ended with.
    """
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="workbench", standalone_mode=False)
    except InputError as error:
        say(f"error: {one_line(str(error))}")
        return WRONG_INPUT
    except WorkbenchError as error:
        say(f"error: {one_line(str(error))}")
        return ENDED_BADLY
    except typer.TyperException as error:
        message = one_line(usage(error))
        if message:  # without one, it was the help that was shown
            say(f"error: {message}")
        return error.exit_code
    except typer.Abort:
        return ENDED_BADLY
    except Exception as error:
        return report_unexpected(error)
    if isinstance(code, train.JobCode):
        return code
    return code if code in (GOOD, ENDED_BADLY, WRONG_INPUT) else ENDED_BADLY


def usage(error: typer.TyperException) -> str:
    """What is wrong with a command's arguments: of a value the option, the value and what it must be."""
    option, cause = getattr(error, "param", None), error.__cause__
    if option is None or not isinstance(cause, ValidationError):
        return error.format_message()
    problem = cause.errors()[0]
    name = max(option.opts, key=len) if option.opts else option.human_readable_name
    return str(InputError(name, problem["input"], remedy_of(problem)))


def one_line(text: str) -> str:
    """A message without line breaks."""
    return " ".join(text.split())


def report_unexpected(error: Exception) -> int:
    """One line for a mistake of ours, and where the traceback is."""

    traceback_file = keep_traceback(error)
    say(
        f"error: {type(error).__name__}: {one_line(str(error))} (not your mistake; details in {traceback_file})"
    )
    return ENDED_BADLY
