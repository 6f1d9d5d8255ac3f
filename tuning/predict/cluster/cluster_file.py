"""A cluster as a person writes it down in TOML: its keys, what is wrong with them, and the cluster it describes.

A figure that is missing is named, never made up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.config.errors import InputError, remedy_of, several
from engine.run.calibration import host_links
from profilers.records.operations import named_in_nccl
from tuning.predict.cluster.csv_table import GIGA, read
from tuning.predict.model.hardware import Accelerator, BandwidthMeasurement, Cluster, Group, Link

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Wire(_Part):
    """A link of one device, in one direction; ``alpha_seconds`` is the start of a message."""

    bytes_per_second: _Rate | None = None
    alpha_seconds: Annotated[float, Field(ge=0)] | None = None
    source: str = "the cluster's file"


class Network(_Part):
    """A node's network, in one direction; its devices share the rate."""

    bytes_per_second_per_node: _Rate | None = None
    alpha_seconds: Annotated[float, Field(ge=0)] | None = None
    source: str = "the cluster's file"


class Nodes(_Part):
    """Nodes that are alike. ``accelerator`` is one of the file's own or of the catalogue."""

    accelerator: str
    devices_per_node: _Count
    nodes: _Count | None = None
    network: str
    inside: Wire = Wire()
    between: Network = Network()
    pairs: Wire | None = None


class Chip(_Part):
    """An accelerator that the catalogue does not have: dense FLOP/s by format, bytes, bytes/s."""

    peak_flops: dict[Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"], _Rate] = Field(min_length=1)
    memory_bytes: _Count
    memory_bandwidth: _Rate
    source: str = "the cluster's file"


class ClusterFile(_Part):
    """``across`` joins groups; ``measured`` names a CSV of bandwidths by nodes, beside the file, and ``links`` what
    ``engine.launch.measure.pairs`` found on these nodes, in the order of the file's.
    """

    name: str = "cluster"
    groups: Annotated[list[Nodes], Field(min_length=1)]
    across: Wire | None = None
    accelerators: dict[str, Chip] = {}
    measured: str | None = None
    links: str | None = None


def tree(path: Path) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cluster", str(path), f"cannot be read ({error}); name a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError("cluster", str(path), f"is not valid TOML ({error})") from None


def parse(values: Mapping[str, Any]) -> ClusterFile:
    """A checked cluster's file from plain values.

    Raises:
        InputError: a key is unknown or missing, or a value is of the wrong kind.
    """
    try:
        return ClusterFile.model_validate(values)
    except ValidationError as error:
        raise _input_error(error) from None


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "cluster"
    remedy = remedy_of(first)
    if first["type"] == "extra_forbidden":
        remedy = f"unknown key; known here: {', '.join(sorted(_keys(first['loc'][:-1])))}"
    return InputError(field, None if first["type"] == "missing" else first["input"], remedy)


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """Keys of the part that a path leads to; numbers and names of entries lead nowhere new."""
    model: type[BaseModel] = ClusterFile
    for part in path:
        field = model.model_fields.get(str(part))
        model = next(_models(field.annotation), model) if field else model
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


#: Finds an accelerator that the file does not hold itself.
Finder = Callable[[str], Accelerator]

NO_SOURCE = "no source tells this figure, and none is made up; give it in a cluster file of your own"
#: Bytes of the collectives behind a table of measured bandwidths, as its header says.
_TABLE_BYTES = 256e6
_NO_START = "no figure; 0 until a calibration measures it"


def build(file: ClusterFile, find: Finder, folder: Path, nodes: int | None = None) -> Cluster:
    """The cluster that a file describes; ``nodes`` takes the place of its only group's number.

    Raises:
        InputError: a figure is missing, or the number of nodes is none or ambiguous.
    """
    if nodes is not None and (isinstance(nodes, bool) or nodes < 1):
        raise InputError("nodes", nodes, "give a whole number of at least 1")
    if nodes is not None and len(file.groups) > 1:
        raise InputError(
            "nodes", nodes, f"{file.name} has {len(file.groups)} groups; give each its nodes in the file"
        )
    chips = {name: _chip(name, chip) for name, chip in file.accelerators.items()}
    groups = tuple(
        _group(
            f"{file.name}.groups.{index}", part, chips.get(part.accelerator) or find(part.accelerator), nodes
        )
        for index, part in enumerate(file.groups)
    )
    if len(groups) > 1 and file.across is None:
        raise InputError(f"{file.name}.across", None, "is missing: give the link that joins the groups")
    group_link = _link(f"{file.name}.across", file.across) if file.across else None
    measured = _read_bandwidths(folder / file.measured) if file.measured else ()
    links = host_links.read_links(folder / file.links) if file.links else None
    count = sum(group.nodes for group in groups)
    if links is not None and len(links.hosts) != count:
        remedy = (
            f"joins {several(len(links.hosts), 'hosts')}, and {file.name} has {several(count, 'nodes')}: "
        )
        remedy += "measure all of them"
        raise InputError("links", file.links, remedy)
    sources = dict(_sources(file, groups))
    return Cluster(file.name, groups, group_link, sources, measured, host_links=links)


def _chip(name: str, chip: Chip) -> Accelerator:
    rates = {str(form): rate for form, rate in chip.peak_flops.items()}
    figures = [*(f"peak_flops.{form}" for form in rates), "memory_bytes", "memory_bandwidth"]
    sources = dict.fromkeys(figures, chip.source)
    return Accelerator(name, rates, chip.memory_bytes, chip.memory_bandwidth, sources)


def _group(field: str, part: Nodes, accelerator: Accelerator, nodes: int | None) -> Group:
    count = nodes or part.nodes
    if count is None:
        raise InputError(f"{field}.nodes", None, "is missing: give the number of nodes")
    alone = part.devices_per_node == 1 and count > 1
    between = _link_between(f"{field}.between", part) if count > 1 else None
    inside = between if alone and between else _link(f"{field}.inside", part.inside)
    pairs = _link(f"{field}.pairs", part.pairs) if part.pairs else None
    return Group(count, part.devices_per_node, accelerator, inside, between or inside, part.network, pairs)


def _link(field: str, wire: Wire) -> Link:
    if wire.bytes_per_second is None:
        raise InputError(f"{field}.bytes_per_second", None, NO_SOURCE)
    return Link(wire.alpha_seconds or 0.0, wire.bytes_per_second)


def _link_between(field: str, part: Nodes) -> Link:
    rate = part.between.bytes_per_second_per_node
    if rate is None:
        raise InputError(f"{field}.bytes_per_second_per_node", None, NO_SOURCE)
    return Link(part.between.alpha_seconds or 0.0, rate / part.devices_per_node)


def _read_bandwidths(path: Path) -> tuple[BandwidthMeasurement, ...]:
    """Bandwidths by number of nodes, from a CSV with ``collective``, ``nodes`` and ``bandwidth_gb_s``."""
    sheet = read(path)
    operations = named_in_nccl()
    names = [operations.get(str(name), str(name)) for name in sheet.texts("collective")]
    rows = list(zip(names, sheet.whole("nodes"), sheet.numbers("bandwidth_gb_s", GIGA), strict=True))
    return tuple(
        BandwidthMeasurement(
            name,
            _TABLE_BYTES,
            tuple(sorted((int(n), float(rate)) for device, n, rate in rows if device == name)),
        )
        for name in dict.fromkeys(names)
    )


def _sources(file: ClusterFile, groups: tuple[Group, ...]) -> Iterator[tuple[str, str]]:
    for index, (part, group) in enumerate(zip(file.groups, groups, strict=True)):
        wires = {"inside": part.inside, "pairs": part.pairs}
        if group.nodes > 1:
            wires["between"] = Wire(alpha_seconds=part.between.alpha_seconds, source=part.between.source)
        for name, wire in wires.items():
            yield from _of_wire(f"groups.{index}.{name}", wire)
    yield from _of_wire("across", file.across)


def _of_wire(field: str, wire: Wire | None) -> Iterator[tuple[str, str]]:
    if wire is not None:
        yield f"{field}.bytes_per_second", wire.source
        yield f"{field}.alpha_seconds", _NO_START if wire.alpha_seconds is None else wire.source
