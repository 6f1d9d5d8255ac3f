"""``lab``: hosts in network namespaces, in islands if wanted, with links of chosen rates, kept across runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.commands.options import Json

if TYPE_CHECKING:
    from engine.config.formulas.network import Shape
    from engine.launch.lab.lab import Lab

app = typer.Typer(
    name="lab", no_args_is_help=True, help="Hosts in network namespaces, links of chosen rates."
)
_Rate = typer.Option(
    min=10, max=10_000, help="Rate of every host's link, each way, in Mbit/s.  [default: not limited]"
)


@app.command()
def up(
    hosts: Annotated[
        int | None, typer.Option(min=2, max=250, help="How many.  [default: 2, or as --islands says]")
    ] = None,
    islands: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N,..", help="Groups of hosts: their number, or the hosts in each, as in 2,2."
        ),
    ] = None,
    rate_mbit: Annotated[float | None, _Rate] = None,
    rates_mbit: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,..", help="Rate for each island, as in 1000,100; `none` leaves one unlimited."
        ),
    ] = None,
    between_mbit: Annotated[
        float | None,
        typer.Option(
            min=10,
            max=10_000,
            help="Rate of each island's link to the others, in Mbit/s.  [default: not limited]",
        ),
    ] = None,
    inside_mbit: Annotated[
        float | None,
        typer.Option(
            min=10,
            max=10_000,
            help="Rate of a second card of each host that reaches only its island.  [default: there is none]",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Set up a lab that stays until `lab down`, and measure its links; runs that ask for the same lab use it."""
    from engine.launch.lab import lab, registry

    options: dict[str, Any] = {
        "hosts": hosts,
        "islands": None if islands is None else _islands(islands),
        "rate_mbit": rate_mbit,
        "rates_mbit": None if rates_mbit is None else _rates(rates_mbit),
        "between_mbit": between_mbit,
        "inside_mbit": inside_mbit,
    }
    if hosts is None and not isinstance(options["islands"], list):
        options["hosts"] = 2
    shape = _shape(options)
    lab.require_means("--hosts", shape.hosts)
    _tell([registry.keep(shape)], json)
    return 0


@app.command()
def down(json: Json = False) -> int:
    """Remove labs that were set up, and what killed runs left behind; labs in use stay."""
    from engine.launch.lab import lab, registry
    from workbench.text.output import emit_json

    lab.require_means("lab", None)
    removed_labs, in_use = registry.take_down()
    if json:
        emit_json(
            {
                "removed": [document(entry) for entry in removed_labs],
                "in_use": [document(entry) for entry in in_use],
            }
        )
        return 0
    print(
        f"removed {len(removed_labs)}: " + "; ".join(map(words, removed_labs))
        if removed_labs
        else "no lab to remove"
    )
    for entry in in_use:
        print(f"in use, not removed: {words(entry)}")
    return 0


@app.command()
def status(json: Json = False) -> int:
    """Show the labs of this machine: their links, what these carry and have sent, and the ranks on each host."""
    from engine.launch.lab import registry
    from engine.run import netns
    from workbench.text.output import emit_json

    reason = netns.unavailability()
    labs = [] if reason else registry.list_labs()
    if json:
        emit_json({"available": reason is None, "reason": reason, "labs": [document(lab) for lab in labs]})
    elif labs:
        _tell(labs, json=False)
    else:
        print(
            f"no lab can be set up: {reason}" if reason else "there is no lab; `workbench lab up` sets one up"
        )
    return 0


def document(lab: Lab) -> dict[str, Any]:
    """A lab as JSON; counters include headers, and a link is told from its host's or its island's end."""
    from engine.launch.lab import registry

    rates = [_mbit(rate) for rate in lab.shape.rates_kbit]
    return {
        "hosts": lab.shape.hosts,
        "islands": list(lab.shape.islands),
        "rate_mbit": rates[0] if len(set(rates)) == 1 else None,
        "rates_mbit": rates,
        "between_mbit": _mbit(lab.shape.between_kbit),
        "inside_mbit": _mbit(lab.shape.inside_kbit),
        "kept": lab.is_lasting,
        "owner_pid": lab.pid or None,
        "deserted": lab.deserted,
        "namespaces": lab.namespaces,
        "ranks": [[rank._asdict() for rank in host] for host in registry.find_lab_ranks(lab.namespaces)],
        "links": _links(lab),
    }


def words(lab: Lab) -> str:
    """A lab in a few words."""
    owner = (
        "kept"
        if lab.is_lasting
        else f"left by process {lab.pid}"
        if lab.deserted
        else f"of process {lab.pid}"
    )
    return f"{lab.shape}, {owner}"


def _links(lab: Lab) -> list[dict[str, Any]]:
    from engine.launch.lab import registry
    from engine.launch.lab.build import read_rates
    from engine.launch.lab.links import down_links

    measured, links_down = read_rates(lab.links), down_links(lab.links)
    rows = []
    for link in lab.links:
        rates, traffic = measured.get(link), registry.traffic(link.near)
        rows.append(
            {
                "name": link.name,
                "hosts": list(link.hosts),
                "rate_mbit": _mbit(link.rate_kbit),
                "measured_sent_mbit": None if rates is None else rates.sent_mbit,
                "measured_received_mbit": None if rates is None else rates.received_mbit,
                "up": link not in links_down,
                "sent_bytes": None if traffic is None else traffic.sent_bytes,
                "received_bytes": None if traffic is None else traffic.received_bytes,
            }
        )
    return rows


def _tell(labs: list[Lab], json: bool) -> None:
    from workbench.text.output import emit_json

    if json:
        emit_json(document(labs[0]))
        return
    for lab in labs:
        print(words(lab))
        facts = document(lab)
        for row in facts["links"]:
            print(f"  {row['name']}: {_link_words(row)}")
        for host, ranks in enumerate(facts["ranks"]):
            for rank in ranks:
                print(f"  on host {host}: rank {rank['rank']} of {rank['run']}")


def _link_words(row: dict[str, Any]) -> str:
    from engine.config.formulas.network import rate_words

    parts = [rate_words(round((row["rate_mbit"] or 0) * 1000)) if row["up"] else "down"]
    if row["measured_sent_mbit"] is not None:
        parts.append(
            f"measured {row['measured_sent_mbit']:,.1f} from it and {row['measured_received_mbit']:,.1f} to it"
        )
    if row["sent_bytes"] is not None:
        parts.append(f"{row['sent_bytes']:,} bytes sent")
    return ", ".join(parts)


def _shape(options: dict[str, Any]) -> Shape:
    """What the options describe, checked as a configuration's ``lab`` is."""
    from engine.config.errors import InputError
    from engine.config.formulas.network import shape_of
    from engine.config.run_config import parse

    try:
        shape = shape_of(parse({"lab": options}).lab)
    except InputError as error:
        field = error.field if "." in error.field else "lab.hosts"
        raise InputError(_as_options(field), error.value, _as_options(error.remedy)) from None
    assert shape is not None
    return shape


def _as_options(text: str) -> str:
    """Keys of a configuration's ``lab`` as they are typed here."""
    return re.sub(r"lab\.(\w+)(?:\.\d+)?", lambda key: f"--{key[1].replace('_', '-')}", text)


def _islands(text: str) -> int | list[int]:
    numbers = _numbers("--islands", text, int)
    return numbers[0] if "," not in text else numbers


def _rates(text: str) -> list[float | None]:
    return _numbers("--rates-mbit", text, lambda part: None if part == "none" else float(part))


def _numbers(option: str, text: str, number: Any) -> list[Any]:
    from engine.config.errors import InputError

    try:
        return [number(part.strip()) for part in text.split(",")]
    except ValueError:
        raise InputError(option, text, "has to be numbers separated by commas") from None


def _mbit(kbit: int) -> float | None:
    return kbit / 1000 if kbit else None
