"""``quality``: what a lossy setting does to the loss, beside the exact run of the same seed and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json

if TYPE_CHECKING:
    from workbench.runs import RunView

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A lossy run: its id, a unique prefix, or its last part.")
]


def quality(
    run: Run,
    home: Home,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="RUN", help="The exact run; without it one of equal configuration is found."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Held-out loss of a lossy or late setting against steps, seconds and bytes, beside the exact baseline."""
    from workbench.output import emit_json, result_console
    from workbench.quality import report
    from workbench.render_quality import print_quality

    chosen = None if baseline is None else _view(home, "--baseline", baseline)
    found = report(home, _view(home, "RUN", run), chosen)
    if json:
        emit_json(found)
    else:
        print_quality(result_console(), found)
    return 0


def _view(home: Path, field: str, text: str) -> RunView:
    from engine.config.errors import InputError
    from workbench import runs
    from workbench.partial import with_numbers_so_far
    from workbench.resolve import resolve

    target = resolve(home, text)
    if target.kind != "run":
        raise InputError(field, text, "is a study; give one of its runs")
    return with_numbers_so_far(runs.load(target.folder))
