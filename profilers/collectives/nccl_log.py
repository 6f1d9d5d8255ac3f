"""What NCCL's log of a rank says: the algorithm and protocol it chose, and whether it took a setting. Pure.

Read from ``NCCL_DEBUG=INFO`` with ``NCCL_DEBUG_SUBSYS=TUNING``. NCCL 2.24 and later name algorithms ("Algo RING proto
LL128"); before that they are numbers, in the order of NCCL's ``ncclFuncs`` tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from profilers.model.environment import ELSEWHERE, NO, UNTOLD, YES
from profilers.records.operations import named_in_nccl

_LINE = re.compile(r"NCCL INFO (\w+): +(\d+) Bytes -> Algo (\w+) proto (\w+)")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("LL", "LL128", "simple")


class Choice(NamedTuple):
    """What NCCL did with one operation of one size."""

    operation: str
    bytes: int
    algorithm: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.bytes:,} bytes: {self.algorithm}, {self.protocol}"


def choices(lines: Iterable[str]) -> list[Choice]:
    """Each choice once, in the order in which they were made first; other lines are none."""
    parsed = (_choice(match) for match in map(_LINE.search, lines) if match)
    return list(dict.fromkeys(parsed))


def _choice(match: re.Match[str]) -> Choice:
    name, size, algorithm, protocol = match.groups()
    operation = named_in_nccl().get(name, name.lower())
    return Choice(
        operation, int(size), _canonical_name(algorithm, _ALGORITHMS), _canonical_name(protocol, _PROTOCOLS)
    )


def _canonical_name(text: str, names: tuple[str, ...]) -> str:
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else f"number {text}"
    return next((name for name in names if name.lower() == text.lower()), text.lower())


_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (\S+?)\.?\s*$")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_ANY = "NCCL INFO "
_FEWEST = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
_MOST = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")


class Proof(NamedTuple):
    """What a library uses, whether that is what was asked for, and how that is known."""

    used: str | None
    proven: str
    how: str


def settings(lines: Sequence[str]) -> list[str]:
    """The lines in which NCCL says that it read a variable."""
    return [line for line in lines if _SET.search(line)]


def proof(name: str, value: str, lines: Sequence[str], earlier: Sequence[str] = ()) -> Proof:
    """Of one setting, by the log of a run; ``earlier`` are the :func:`settings` of runs before it in its process.

    NCCL logs a variable when it first needs it, most of them once in a process: one that it never read cannot have
    acted. What it chose and how many channels it has it tells of each communicator.
    """
    if not any(_ANY in line for line in (*earlier, *lines)):
        return Proof(None, UNTOLD, "NCCL's log is not on, or empty")
    read = {match[1]: match[2] for match in map(_SET.search, (*earlier, *lines)) if match}
    if name not in read:
        return Proof(None, NO, "NCCL never read it, by its log: it has no effect here")
    if read[name].lower() != value.lower():
        return Proof(read[name], NO, f"NCCL's log says that it was set to {read[name]}")
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        return _choice_proof(name, value, lines)
    if name in _FEWEST + _MOST:
        return _channels(name, int(value), lines)
    return Proof(read[name], YES, "NCCL's log says that it read it")


def _choice_proof(name: str, value: str, lines: Sequence[str]) -> Proof:
    chosen = choices(lines)
    if not chosen:
        return Proof(
            None, ELSEWHERE, "NCCL read it; no rank's log has choices (NCCL_DEBUG_SUBSYS without TUNING)"
        )
    names = dict.fromkeys(choice.algorithm if name == "NCCL_ALGO" else choice.protocol for choice in chosen)
    used, wanted = ", ".join(names), value.lower()
    took = [name for name in names if name.lower().replace("_", "") == wanted]
    if not took:
        return Proof(used, NO, "NCCL read it and chose something else, by its log")
    return Proof(used, YES, "NCCL's log of its choices")


def _channels(name: str, channels: int, lines: Sequence[str]) -> Proof:
    counts = [int(match[1]) for match in map(_CHANNELS.search, lines) if match]
    if not counts:
        return Proof(None, UNTOLD, "NCCL read it; its log does not tell how many channels it has")
    obeyed = min(counts) >= channels if name in _FEWEST else max(counts) <= channels
    used = ", ".join(str(count) for count in dict.fromkeys(counts))
    return Proof(used, YES if obeyed else NO, "channels of its communicators, by NCCL's log")
