"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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


def command_with_names(read_names: Callable[[], Iterable[str]]) -> type[TyperCommand]:
    """A kind of command whose help shows these names for ``{names}``.

    They are read when the command is called or its help is shown: registries take too long to import for every start.
    """

    class CommandWithNames(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            parameters: list[Any] = super().get_params(ctx)
            for parameter in parameters:
                if "{names}" in (parameter.help or ""):
                    parameter.help = parameter.help.replace("{names}", ", ".join(read_names()))
            return parameters

    return CommandWithNames
