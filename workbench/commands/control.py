"""``stop`` and ``control``: commands to a run or a study that is going on."""

from __future__ import annotations

from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json
from workbench.text.control import Action, table


def stop(identity: Id, home: Home, json: Json = False) -> int:
    """Stop a run at the same step on all ranks, or a study once its running trial has stopped; results are kept."""
    return control(identity, Action.STOP, home, [], json)


def control(
    identity: Id,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="Action to send; see the table.")],
    home: Home,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the action; see the table.")
    ] = None,
    json: Json = False,
) -> int:
    """Steer a study or a run while it is running."""
    from workbench.home.control import arguments_of, ask, command_author
    from workbench.home.resolve import resolve
    from workbench.text.output import emit_json, say

    target = resolve(home, identity)
    arguments = arguments_of(target, action.value, values or [])
    reply = ask(target, action.value, arguments, command_author())
    if json:
        emit_json(reply.as_dict())
    elif reply.accepted is False:
        say(f"refused: {reply.text}")
    else:
        print(reply.text)
    return 2 if reply.accepted is False else 0


#: How ``workbench control --help`` begins; the first character keeps the lines of the table.
HELP = f"{control.__doc__}\n\n\b\n{table()}"
