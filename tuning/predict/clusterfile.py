"""A cluster as a person writes it down, in TOML: its keys, and what is wrong with them in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.config.errors import InputError

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
    """``across`` joins groups; ``measured`` names a CSV of bandwidths by nodes, beside the file."""

    name: str = "cluster"
    groups: Annotated[list[Nodes], Field(min_length=1)]
    across: Wire | None = None
    accelerators: dict[str, Chip] = {}
    measured: str | None = None


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
    where = ".".join(str(part) for part in first["loc"]) or "cluster"
    remedy = first["msg"]
    if first["type"] == "extra_forbidden":
        remedy = f"unknown key; known here: {', '.join(sorted(_keys(first['loc'][:-1])))}"
    return InputError(where, None if first["type"] == "missing" else first["input"], remedy)


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """Keys of the part that a path leads to; numbers and names of entries lead nowhere new."""
    here: type[BaseModel] = ClusterFile
    for part in path:
        field = here.model_fields.get(str(part))
        here = next(_models(field.annotation), here) if field else here
    return list(here.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
