"""torch's Flight Recorder: the last collectives of a rank, as NCCL's and gloo's process groups note them.

A dump is JSON or a pickle of plain values (torch/csrc/distributed/c10d/FlightRecorder.hpp, format 2.x). In JSON a time
that is not known is 0, in a pickle None. gloo leaves every state at "scheduled" and only marks what has ended as
retired. Durations need ``TORCH_NCCL_ENABLE_TIMING=1``; "discovered" times are those of a watchdog that looks now and
then, and no durations.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from profilers.records.operations import operation_of

#: torch's name of a scalar type -> dtype, bytes of an element.
_DTYPES: dict[str, tuple[str, int]] = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
}
#: How many calls the recorders keep, by torch's two names for it, of which the first counts more.
_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_KEPT = "2000"


class DumpError(ValueError):
    """Not a dump of the Flight Recorder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One call on one rank. ``pair`` is who sends and who receives a message, by their places in the group.

    ``sequence`` counts a group's collectives, the same on all ranks, or this rank's messages in the group, which no
    other rank counts alike. ``state`` is scheduled, started, completed, or aborted: it ran into its time-out, and ended
    at most because the communicator was torn down.
    """

    order: int
    group: str
    description: str
    operation: str
    pair: tuple[int, int] | None
    sequence: int
    dtype: str
    bytes: int
    created_unix: float
    started_unix: float | None
    completed_unix: float | None
    seconds: float | None
    state: str
    timeout_seconds: float

    @property
    def has_ended(self) -> bool:
        """Whether it did what it was asked to."""
        return self.state == "completed"


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank left, oldest first. ``members`` are the ranks of a group, where the backend told them.

    ``is_complete`` tells whether the recorder, which keeps the last calls only, still had all of them.
    """

    version: str
    library: str
    entries: list[Entry]
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_complete: bool = True


def arm() -> None:
    """Have recorders keep the last calls, unless the environment says how many; before the first group is made."""
    if not any(os.environ.get(name) for name in _BUFFER_SIZES):
        os.environ[_BUFFER_SIZES[0]] = _KEPT


def take(backend: str) -> list[bytes]:
    """Dumps of this process, as JSON; callable on any thread while the main one hangs.

    NCCL's calls have a recorder of their own, which only builds with NCCL know. Another one has those of gloo, by which
    checkpoints travel also beside NCCL; in some versions of torch it has NCCL's as well.
    """
    from profilers import torch_private  # a reader of dumps needs no torch

    return torch_private.flight_dumps(of_nccl=backend == "nccl")


def merge_dumps(dumps: Sequence[Dump]) -> Dump:
    """One rank's dumps as one, with calls that several recorders have once. DumpError if there is none."""
    if not dumps:
        raise DumpError("no recorder left a dump")
    entries: dict[tuple[str, int, float], Entry] = {}
    for entry in (entry for dump in dumps for entry in dump.entries):
        entries.setdefault((entry.group, entry.order, entry.created_unix), entry)
    return Dump(
        version=dumps[0].version,
        library=dumps[0].library,
        entries=sorted(entries.values(), key=lambda entry: (entry.created_unix, entry.order)),
        members={group: ranks for dump in dumps for group, ranks in dump.members.items()},
        is_complete=all(dump.is_complete for dump in dumps),
    )


def parse(data: bytes, since_unix: float = 0.0) -> Dump:
    """A dump from its JSON or pickle, of the calls since then. DumpError if it is neither, or damaged.

    A process that served several runs has calls of all of them, in groups of the same names.
    """
    tree = _tree(data)
    if not isinstance(tree, dict) or "version" not in tree:
        raise DumpError("not a dump of the Flight Recorder: it has no version")
    try:
        entries = [_entry(raw) for raw in tree.get("entries") or []]
        members = {
            str(group["name"]): tuple(json.loads(group["ranks"]))
            for group in (tree.get("pg_config") or {}).values()
            if group["name"] != ""
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DumpError(f"format {tree['version']} is not understood: {error!r}") from error
    library = str(tree.get("comm_lib_version") or tree.get("nccl_version") or "")
    entries.sort(key=lambda entry: entry.order)
    whole = not entries or entries[0].order == 0 or entries[0].created_unix < since_unix
    recent = [entry for entry in entries if entry.created_unix >= since_unix]
    return Dump(str(tree["version"]), library, recent, members, whole)


class _PlainUnpickler(pickle.Unpickler):
    """A dump holds plain values; anything else in a file is not for us to load."""

    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(f"a pickle with {module}.{name} in it is no dump")


def _tree(data: bytes) -> Any:
    try:
        if data[:1] == b"{":
            return json.loads(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (ValueError, EOFError, pickle.UnpicklingError, KeyError, IndexError, AttributeError) as error:
        raise DumpError(f"not a dump of the Flight Recorder: {error}") from error


def _entry(raw: dict[str, Any]) -> Entry:
    name, _, pair = raw["profiling_name"].partition(":")[2].partition(" ")
    definition = operation_of(name.lower())
    operation = definition.name if definition else name.lower()
    created, completed = raw["time_created_ns"], raw.get("time_discovered_completed_ns")
    point_to_point = bool(pair) or bool(raw.get("is_p2p"))
    side = "output" if definition and definition.payload_is_output else "input"
    dtypes = [_DTYPES.get(dtype, (dtype.lower(), 0)) for dtype in raw[f"{side}_dtypes"]]
    group, description = raw["process_group"]
    return Entry(
        order=raw["record_id"],
        group=str(group),
        description=str(description),
        operation=operation,
        pair=_pair(pair),
        sequence=raw["p2p_seq_id" if point_to_point else "collective_seq_id"],
        dtype=dtypes[0][0] if dtypes else "",
        bytes=sum(prod(size) * width for size, (_, width) in zip(raw[f"{side}_sizes"], dtypes, strict=False)),
        created_unix=created / 1e9,
        started_unix=_unix(raw.get("time_discovered_started_ns")),
        completed_unix=_unix(completed),
        seconds=raw["duration_ms"] / 1e3 if raw.get("duration_ms") is not None else None,
        state=_state(raw, created, completed),
        timeout_seconds=raw["timeout_ms"] / 1e3,
    )


def _state(raw: dict[str, Any], created_ns: int, completed_ns: int | None) -> str:
    if raw["profiling_name"].startswith("gloo:"):
        return "completed" if raw["retired"] else str(raw["state"])
    if raw["state"] != "completed":
        return "aborted" if raw["retired"] else str(raw["state"])
    late = completed_ns and completed_ns - created_ns > raw["timeout_ms"] * 1_000_000
    return "aborted" if late else "completed"


def _pair(text: str) -> tuple[int, int] | None:
    """ "0->1" of a send and "1<-0" of its receive are the same message."""
    for arrow in ("->", "<-"):
        sender, separator, receiver = text.partition(arrow)
        if separator:
            return (int(sender), int(receiver)) if arrow == "->" else (int(receiver), int(sender))
    return None


def _unix(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None
