"""Proof that a run's environment variables took effect in a rank: what its process has, and what libraries use."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine import environment, malloc
from engine.environment_names import VARIABLES, Environment
from profilers.collectives.nccl_log import Proof, proof, settings
from profilers.model.environment import ASKED, NO, PROOF, UNTOLD, YES, EnvironmentRow
from profilers.records.writer import RecordWriter

#: What NCCL said of variables in earlier runs of this process: it reads most of them once, and logs are a run's own.
_SAID = list[str]()
_ENDED = Proof(None, UNTOLD, "the rank ended before it looked")


def note_asked(asked: Environment, writer: RecordWriter) -> None:
    """As a rank begins: what its run asks for and what its process has, in case that it never gets to :func:`note`."""
    rows = [_row(name, value, _ENDED) for name, value in environment.asked(asked).items()]
    if rows:
        writer.event(ASKED, rows=[asdict(row) for row in rows])


def note(asked: Environment, device: torch.device, log: Path, writer: RecordWriter) -> None:
    """As a rank has trained: what came of each setting. ``log`` has what NCCL printed, if that was on.

    A warm worker's runs all ask for the same variables, so each of them comes here if one does.
    """
    wanted = environment.asked(asked)
    lines = _lines(log) if any(name.startswith("NCCL_") for name in wanted) else []
    rows = [_row(name, value, _proof(name, value, device, lines)) for name, value in wanted.items()]
    _SAID.extend(line for line in settings(lines) if line not in _SAID)
    if rows:
        writer.event(PROOF, rows=[asdict(row) for row in rows])


def _row(name: str, value: Any, found: Proof) -> EnvironmentRow:
    text, seen = environment.text_of(name, value), environment.seen(name)
    if seen != text:
        found = Proof(found.used, NO, "its process does not have it so")
    return EnvironmentRow(name, text, seen, found.used, found.proven, found.how)


def _proof(name: str, value: Any, device: torch.device, lines: list[str]) -> Proof:
    silent = environment.silent(name, device.type, dist.get_world_size())
    if silent is not None:
        return Proof(None, NO, silent)
    if name in _TRIED:
        return _TRIED[name](value)
    if VARIABLES[name].part is not None:
        return _allocator(name, value)
    if name.startswith("NCCL_"):
        return proof(name, environment.text_of(name, value), lines, _SAID)
    return Proof(None, UNTOLD, "the library does not tell what it uses")


def _threads(asked: int) -> Proof:
    used = torch.get_num_threads()
    return Proof(str(used), YES if used == asked else NO, "torch.get_num_threads")


_TRIED: dict[str, Callable[[Any], Proof]] = {
    "OMP_NUM_THREADS": _threads,
    "MALLOC_ARENA_MAX": malloc.arenas,
    "MALLOC_MMAP_THRESHOLD_": malloc.mapped_from,
}


def _allocator(name: str, asked: Any) -> Proof:
    known = torch.cuda.memory._snapshot()["allocator_settings"]
    return allocator_proof(name, asked, known)


def allocator_proof(name: str, asked: Any, known: dict[str, Any]) -> Proof:
    """Of a setting of the GPU allocator, from the ``allocator_settings`` of its snapshot."""
    key = {"max_split_size_mb": "max_split_size"}.get(str(VARIABLES[name].part), str(VARIABLES[name].part))
    how = f"allocator_settings.{key} of torch.cuda.memory's snapshot"
    if key not in known:
        return Proof(None, UNTOLD, f"no {how}")
    wanted = asked * 2**20 if key == "max_split_size" else asked
    used = known[key]
    if isinstance(used, dict):  # divisions are told for each size
        same = all(int(value) == wanted for value in used.values())
    else:
        same = math.isclose(float(used), float(wanted), rel_tol=1e-6)
    return Proof(str(used), YES if same else NO, how)


def _lines(log: Path) -> list[str]:
    ctypes.CDLL(None).fflush(None)  # NCCL prints through the C library, which keeps what goes to a file
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
