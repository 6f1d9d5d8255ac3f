"""``lab``: hosts in network namespaces with links of a chosen rate, kept across runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.commands.options import Json

if TYPE_CHECKING:
    from engine.launch.lab import Lab

app = typer.Typer(
    name="lab", no_args_is_help=True, help="Hosts in network namespaces, links of a chosen rate."
)


@app.command()
def up(
    hosts: Annotated[int, typer.Option(min=2, max=250, help="How many.")] = 2,
    rate_mbit: Annotated[
        float | None,
        typer.Option(
            min=10, max=10_000, help="Of every link, in each direction, in Mbit/s.  [default: not limited]"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Set a lab up that stays until `lab down`; runs with the same lab.hosts and lab.rate_mbit use it."""
    from engine.launch import lab, labs

    lab.require("--hosts", hosts)
    kept = labs.keep(hosts, rate_mbit)
    _tell([kept], json)
    return 0


@app.command()
def down(json: Json = False) -> int:
    """Remove kept labs, and what runs that were killed left behind; labs in use stay."""
    from engine.launch import labs
    from workbench.output import emit_json

    _require()
    removed, left = labs.take_down()
    if json:
        emit_json({"removed": [document(one) for one in removed], "in_use": [document(one) for one in left]})
        return 0
    print(f"removed {len(removed)}: " + "; ".join(map(words, removed)) if removed else "no lab to remove")
    for one in left:
        print(f"left alone, in use: {words(one)}")
    return 0


@app.command()
def status(json: Json = False) -> int:
    """Show the labs of this machine, and what their hosts have sent."""
    from engine import netns
    from engine.launch import labs
    from workbench.output import emit_json

    reason = netns.unavailable()
    found = [] if reason else labs.standing()
    if json:
        emit_json({"available": reason is None, "reason": reason, "labs": [document(one) for one in found]})
    elif found:
        _tell(found, json=False)
    else:
        print(
            f"no lab can be set up: {reason}" if reason else "no lab stands; `workbench lab up` sets one up"
        )
    return 0


def document(one: Lab) -> dict[str, Any]:
    """A lab as JSON; counters are those of each host's data interface, headers included."""
    from engine.launch import labs

    read = [labs.traffic(name) for name in one.namespaces]
    return {
        "hosts": one.hosts,
        "rate_mbit": one.rate_mbit,
        "kept": one.kept,
        "owner_pid": one.pid or None,
        "deserted": one.deserted,
        "namespaces": one.namespaces,
        "sent_bytes": [None if counters is None else counters.sent_bytes for counters in read],
        "received_bytes": [None if counters is None else counters.received_bytes for counters in read],
    }


def words(one: Lab) -> str:
    """A lab in a few words."""
    rate = "links not limited" if one.rate_mbit is None else f"links of {one.rate_mbit:,g} Mbit/s"
    owner = "kept" if one.kept else f"left by process {one.pid}" if one.deserted else f"of process {one.pid}"
    return f"{one.hosts:,} hosts, {rate}, {owner}"


def _tell(found: list[Lab], json: bool) -> None:
    from workbench.output import emit_json

    if json:
        emit_json(document(found[0]))
        return
    for one in found:
        print(words(one))
        about = document(one)
        for host, name in enumerate(one.namespaces):
            sent = about["sent_bytes"][host]
            print(f"  host {host}: {name}" + ("" if sent is None else f", {sent:,} bytes sent"))


def _require() -> None:
    from engine.launch import lab

    lab.require("lab", None)
