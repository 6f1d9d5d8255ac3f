"""``calibrate``: what this machine reaches, measured.

``doctor``: what this machine can do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json

if TYPE_CHECKING:
    from engine.launch.measure.calibrate import CalibrationRequest
    from engine.run.calibration.store import CalibrationLookup
    from engine.run.calibration.table import Calibration
    from workbench.services.doctor import Check


def calibrate(
    home: Home,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", help="Number of ranks; default: one per GPU, or one per core, from 4 to 8."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure fewer sizes, with less time for each.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    *,
    links: Annotated[
        Path | None,
        typer.Option(
            "--links",
            metavar="FILE",
            help="Measure instead what joins each two hosts of the lab that this configuration or study asks for.",
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the stored calibration instead of measuring.")
    ] = False,
    json: Json = False,
) -> int:
    """Measure this machine: matrix products, memory, copies, and every collective by size and group."""
    from workbench.home.calibrations import find_calibration

    if show:
        _report(home, find_calibration(home), json)
        return 0
    from engine.run.devices.selection import require_torch

    require_torch()
    if links is not None:
        return _measure_links(home, links, json)
    from engine.launch.measure.calibrate import CalibrationRequest

    is_complete = _measure(home, CalibrationRequest(ranks, quick, device))
    _report(home, find_calibration(home), json)
    return 0 if is_complete.complete else 1


def _measure(home: Path, request: CalibrationRequest) -> Calibration:
    from engine.launch.measure.calibrate import calibrate as measure
    from tuning.execution.signals import Interruption
    from workbench.terminal.progress import CalibrateProgress
    from workbench.text.output import stdout_for_results

    with stdout_for_results(), Interruption() as interruption, CalibrateProgress(interruption) as progress:
        return measure(home, request, progress.should_stop, progress.draw)


def _measure_links(home: Path, path: Path, json: bool) -> int:
    from engine.launch.measure.lab_hosts import measure_lab
    from engine.run.calibration import host_links
    from tuning.execution.signals import Interruption
    from workbench.home.inputs import lab_of
    from workbench.terminal.calibration import print_links
    from workbench.terminal.progress import CalibrateProgress
    from workbench.text.output import emit_json, result_console, stdout_for_results

    lab = lab_of(path, "--links")
    with stdout_for_results(), Interruption() as interruption, CalibrateProgress(interruption) as progress:
        measured = measure_lab(lab, progress.should_stop, progress.draw)
    if measured is None:
        return 1
    host_links.save(home, measured)
    if json:
        emit_json(measured.as_dict())
    else:
        print_links(result_console(), measured)
    return 0


def _report(home: Path, stored: CalibrationLookup, json: bool) -> None:
    from engine.run.calibration import host_links
    from workbench.home.calibrations import document
    from workbench.terminal.calibration import print_calibration, print_links
    from workbench.text.output import emit_json, result_console

    if json:
        emit_json(document(home, stored))
        return
    print_calibration(result_console(), stored)
    for links in host_links.stored_links(home).values():
        print_links(result_console(), links)


def doctor(home: Home, json: Json = False) -> int:
    """Report what this machine can do, what is missing, and why."""
    from workbench.services.doctor import document, examine, usable
    from workbench.text.output import emit_json, stdout_for_results

    with stdout_for_results():
        checks = examine(home)
    if json:
        emit_json(document(home, checks))
    else:
        _print(checks)
    return 0 if usable(checks) else 1


def _print(checks: list[Check]) -> None:
    from rich.table import Table

    from workbench.text.output import result_console

    table = Table("", "", "", "", box=None, show_header=False, pad_edge=False)
    colors = {"ok": "green", "missing": "red", "note": "yellow"}
    for check in checks:
        color = colors[check.status] if check.needed or check.status != "missing" else "dim"
        table.add_row(f"[{color}]{check.status}[/]", check.name, check.value, check.why)
    result_console().print(table)
