"""``selftest``: the first ten minutes on a new machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json

if TYPE_CHECKING:
    from workbench.selftest.registry import Check
    from workbench.selftest.results import Selftest


def selftest(
    home: Home,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="DIR", help="A new folder for the evidence; default: HOME/selftest/ID."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME,...", help="Run only these checks.")
    ] = None,
    skip: Annotated[
        str | None, typer.Option("--skip", metavar="NAME,...", help="Run all checks but these.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    *,
    ranks: Annotated[
        int, typer.Option("--ranks", help="Ranks in the checks of parallelism and calibration: 2, 4 or 8.")
    ] = 2,
    with_host_names: Annotated[
        bool, typer.Option("--with-host-names", help="Keep names and addresses of hosts in the evidence.")
    ] = False,
    json: Json = False,
) -> int:
    """Check what this machine can do by doing it, and write a folder of evidence to attach to a bug report."""
    from workbench.selftest.runner import folder_for, select_checks

    checks = select_checks(only, skip)
    _check_options(device, ranks)
    folder = folder_for(home, out)
    result = _run(folder, checks, device, ranks, with_host_names)
    _tell_losses(result)
    result, archive = _with_zip(result, folder)
    _report(result, folder, archive, json)
    return 0 if result.good else 1


def _tell_losses(result: Selftest) -> None:
    from workbench.terminal.selftest import losses
    from workbench.text.output import say

    for line in losses(result.not_kept):
        say(line)


def _with_zip(result: Selftest, folder: Path) -> tuple[Selftest, Path | None]:
    """With the zip, or with the reason why there is none, which is told in a line, too."""
    from dataclasses import replace

    from workbench.selftest import evidence
    from workbench.text.output import say

    try:
        return result, evidence.pack(folder)
    except OSError as error:
        path, why = evidence.packed_path(folder), evidence.error_text(error)
        say(f"no zip: {path} cannot be written ({why}); attach the folder in its place")
        return replace(result, not_kept=result.not_kept | {path.name: why}), None


def _report(result: Selftest, folder: Path, archive: Path | None, json: bool) -> None:
    if json:
        from workbench.text.output import emit_json

        emit_json({"folder": str(folder), "zip": archive and str(archive)} | result.as_dict())
    else:
        from workbench.terminal.selftest import print_selftest
        from workbench.text.output import result_console

        print_selftest(result_console(), result, archive or folder)


def _check_options(device: str, ranks: int) -> None:
    from engine.config.errors import InputError
    from engine.config.run_config import RunConfig
    from engine.run.devices import selection
    from workbench.selftest.results import RANKS

    if ranks not in RANKS:
        raise InputError("--ranks", ranks, f"must be one of {', '.join(map(str, RANKS))}")
    selection.choose(RunConfig().with_values({"device": device}), 1)


def _run(folder: Path, checks: tuple[Check, ...], device: str, ranks: int, with_host_names: bool) -> Selftest:
    from tuning.execution.signals import Interruption
    from workbench.selftest import runner
    from workbench.selftest.isolation import SelftestRequest
    from workbench.selftest.redaction import Redactor
    from workbench.terminal.selftest import SelftestProgress
    from workbench.text.output import stdout_for_results

    with (
        stdout_for_results(),
        Interruption() as interruption,
        SelftestProgress(interruption, len(checks)) as progress,
    ):
        scrubber = Redactor(with_host_names)
        return runner.run(
            folder, checks, SelftestRequest(device, ranks), scrubber, progress.should_stop, progress.tell
        )
