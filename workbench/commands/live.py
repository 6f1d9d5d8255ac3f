"""``live``: tune a run that is going already."""

from __future__ import annotations

from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json

app = typer.Typer(name="live", no_args_is_help=True, help="Tune a run that is going already.")


@app.callback()
def _group() -> None:
    """One command so far: a group all the same."""


@app.command()
def attach(
    identity: Id,
    home: Home,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Number of trials.")] = None,
    json: Json = False,
) -> int:
    """Search for the fastest values of what can be turned in a run, and leave it with them. Ctrl-C leaves it with the
    best so far; the same command goes on.
    """
    from workbench.commands.tune import searched
    from workbench.home.resolve import resolve
    from workbench.services.live_search import study_of_run

    target = resolve(home, identity)
    return searched(home, study_of_run(home, target, trials), json, attached=target.id)
