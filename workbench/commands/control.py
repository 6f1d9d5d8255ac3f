"""``stop`` and ``control``: commands to a run or a study that is going on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json


class Action(StrEnum):
    """What can be asked: of a study all but the last three, of a run to stop and those."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    KILL = "kill"
    ENQUEUE = "enqueue"
    PIN = "pin"
    UNPIN = "unpin"
    NARROW = "narrow"
    WIDEN = "widen"
    BUDGET = "budget"
    SAMPLER = "sampler"
    SNAPSHOT = "snapshot"
    TRACE = "trace"
    SET = "set"


def stop(identity: Id, home: Home, json: Json = False) -> int:
    """Stop a run at the same step on all ranks, or a study after that; what was measured stays."""
    return control(identity, Action.STOP, home, [], json)


def control(
    identity: Id,
    action: Annotated[Action, typer.Argument(help="What to do.")],
    home: Home,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRIAL|KEY=VALUE",
            help="A trial for kill; keys for enqueue, set, pin (one value), unpin (no value), narrow and widen (1,2 or "
            "low..high); trials=N for budget; a name for sampler; steps=N for snapshot and trace.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Steer a study: pause, resume, stop, kill its running trial, enqueue a configuration by hand, pin, narrow or widen
    what it searches, change its budget or sampler. Stop a run, have its ranks write a snapshot of their memory or a
    trace of their next steps, or set keys from the same step on.
    """
    from workbench.home.control import arguments_of, ask, someone
    from workbench.home.resolve import resolve
    from workbench.text.output import emit_json, say

    target = resolve(home, identity)
    arguments = arguments_of(target, action.value, values or [])
    reply = ask(target, action.value, arguments, someone())
    if json:
        emit_json(reply.as_dict())
    elif reply.accepted is False:
        say(f"refused: {reply.text}")
    else:
        print(reply.text)
    return 2 if reply.accepted is False else 0
