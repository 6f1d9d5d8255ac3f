"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.home.settings import DEFAULT_HOME, HOME_VARIABLE, home_folder

_HOME_DEFAULT = f"${HOME_VARIABLE} or ./{DEFAULT_HOME}"

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        default_factory=home_folder,
        callback=home_folder,
        show_default=_HOME_DEFAULT,
        help="Where runs and studies live.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one key, for example parallel.tp=2. May be given several times.",
    ),
]
More = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="KEY=VALUE, as with --set."),
]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="A run or a study: its id, a unique prefix, or a run's last part.")
]
