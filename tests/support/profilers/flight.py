"""Flight Recorder dumps for tests: recorded ones, and NCCL's composed in the format of a recorded entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profilers.collectives.flight_recorder import Dump, parse

DATA = Path(__file__).parents[2] / "data"
#: Three gloo ranks of torch 2.13 in the middle of an all-reduce of the default group that rank 2 never calls.
GLOO = DATA / "flight_gloo"
#: What NCCL left, as PyTorch's tutorial prints it.
TUTORIAL: dict[str, Any] = json.loads((DATA / "flight_nccl.json").read_text("utf-8"))["dump"]
CREATED_NS: int = TUTORIAL["entries"][0]["time_created_ns"]


def gloo_dumps() -> dict[int, Dump]:
    """The recorded dumps by rank."""
    return {rank: parse((GLOO / f"rank-{rank}.json").read_bytes()) for rank in range(3)}


def nccl_entry(sequence: int, order: int | None = None, **known: Any) -> dict[str, Any]:
    """The tutorial's entry as call ``sequence``, a millisecond after the one before, with some values of its own."""
    entry: dict[str, Any] = TUTORIAL["entries"][0] | {"collective_seq_id": sequence, "op_id": sequence}
    entry["record_id"] = sequence - 1 if order is None else order
    entry["time_created_ns"] = CREATED_NS + sequence * 1_000_000
    entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 500_000
    if known.get("state", "completed") != "completed":
        entry |= {"time_discovered_completed_ns": None, "retired": False}
    return entry | known


def nccl_message(text: str, order: int, **known: Any) -> dict[str, Any]:
    """A send ("send 0->1") or receive ("recv 1<-0")."""
    return nccl_entry(0, order, profiling_name=f"nccl:{text}", is_p2p=True, p2p_seq_id=order + 1, **known)


def nccl_bytes(
    entries: list[dict[str, Any]], groups: dict[str, list[int]] | None = None, **known: Any
) -> bytes:
    """A dump of one rank; ``groups`` are the members of each, by default ranks 0 and 1 in the default group."""
    told = {
        name: {"name": name, "desc": name, "ranks": json.dumps(ranks)}
        for name, ranks in (groups or {"0": [0, 1]}).items()
    }
    return json.dumps(TUTORIAL | {"pg_config": told, "entries": entries} | known).encode()


def nccl_dump(entries: list[dict[str, Any]], groups: dict[str, list[int]] | None = None) -> Dump:
    """The same, parsed."""
    return parse(nccl_bytes(entries, groups))
