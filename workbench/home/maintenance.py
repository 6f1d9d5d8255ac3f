"""Frees the room that old runs take: their records and logs go, what they were and what came out stays."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine.checkpoint.checkpoint_folder import CHECKPOINTS
from engine.config.errors import InputError, several
from engine.run import run_folder
from workbench.home import compaction, runs

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_AGE_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_GOING = ".pruned-"


@dataclass(frozen=True, slots=True)
class Limits:
    """What has to go: details of runs that ended longer ago, and the oldest ones above a size in all."""

    older_than_seconds: float | None
    larger_than_bytes: int | None
    checkpoints: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders of a run that may be removed."""
        return (run_folder.RECORDS, run_folder.LOGS, *([CHECKPOINTS] if self.checkpoints else []))


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """One run whose details go: how many bytes, and why."""

    id: str
    bytes: int
    reason: str


@dataclass(slots=True)
class PruneResult:
    """What was done, or would be if ``applied`` is false. ``compacted_files`` became Parquet, which saved bytes."""

    applied: bool
    runs: list[PrunedRun] = field(default_factory=list)
    freed_bytes: int = 0
    compacted_files: int = 0
    compacted_raw_bytes: int = 0
    compacted_parquet_bytes: int | None = None
    left_bytes: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _EndedRun:
    folder: Path
    ended_unix: float
    bytes: int


def limits(older: str | None, larger: str | None, checkpoints: bool = False) -> Limits:
    """Limits from what was typed. InputError for an age or size that cannot be understood."""
    return Limits(
        None if older is None else _seconds(older), None if larger is None else _bytes(larger), checkpoints
    )


def prune(home: Path, limits: Limits, apply: bool, now: float | None = None) -> PruneResult:
    """Remove details of ended runs by age and size, and compact the records of all others.

    Configuration, status and summary stay, so a run can still be listed, shown and exported; checkpoints go only if
    asked for. Nothing is touched of a run that goes on, and nothing at all unless ``apply`` is true.
    """
    result = PruneResult(apply)
    ended = sorted(_ended_runs(home, limits), key=lambda run: run.ended_unix)
    reasons = _going(ended, limits, time.time() if now is None else now)
    for run in ended:
        if run.folder.name in reasons:
            result.runs.append(PrunedRun(run.folder.name, run.bytes, reasons[run.folder.name]))
            result.freed_bytes += run.bytes
            if apply:
                _remove(run.folder, limits, result)
        else:
            _compact(run.folder, result)
    result.left_bytes = sum(run.bytes for run in ended if run.folder.name not in reasons)
    return result


def result_line(result: PruneResult) -> str:
    """One line for people."""
    verb = "were freed" if result.applied else "would be freed"
    line = f"{result.freed_bytes / 1e6:,.1f} MB of {several(len(result.runs), 'runs')} {verb}"
    if result.compacted_files:
        after = result.compacted_parquet_bytes
        size_text = "" if after is None else f", now {after / 1e6:,.1f} MB"
        verb = "compacted" if result.applied else "to compact"
        raw_text = f"{result.compacted_raw_bytes / 1e6:,.1f} MB"
        line += f"; {result.compacted_files} record files {verb} ({raw_text}{size_text})"
    return line if result.applied else f"{line}; do it with --apply"


def _ended_runs(home: Path, limits: Limits) -> Iterator[_EndedRun]:
    for folder in runs.run_folders(home):
        view = runs.load(folder)
        if view.state != "ended" or compaction.writers_live(view):
            continue
        size = sum(_size(folder / part) for part in limits.parts)
        ended = view.status.ended_unix or (folder / run_folder.STATUS).stat().st_mtime
        yield _EndedRun(folder, float(ended), size)


def _going(ended: list[_EndedRun], limits: Limits, now: float) -> dict[str, str]:
    """Run -> why its details go."""
    reasons: dict[str, str] = {}
    total = sum(run.bytes for run in ended)
    for run in (run for run in ended if run.bytes):
        age = now - run.ended_unix
        if limits.older_than_seconds is not None and age > limits.older_than_seconds:
            reasons[run.folder.name] = f"ended {age / 86400:.1f} days ago"
        elif limits.larger_than_bytes is not None and total > limits.larger_than_bytes:
            reasons[run.folder.name] = f"the oldest while all take {total / 1e6:,.1f} MB"
        else:
            continue
        total -= run.bytes
    return reasons


def _remove(folder: Path, limits: Limits, result: PruneResult) -> None:
    """Set aside by one rename each, so that a kill in the middle leaves no half of a record folder."""
    try:
        run_folder.update_status(folder, pruned_unix=time.time())
        for part in limits.parts:
            if (folder / part).is_dir():
                (folder / part).rename(folder / f"{_GOING}{part}-{time.time_ns()}")
                (folder / part).mkdir()
        for remains in folder.glob(f"{_GOING}*"):
            shutil.rmtree(remains)
    except OSError as error:
        result.notes.append(f"{folder.name}: not all of it could be removed ({error.strerror})")


def _compact(folder: Path, result: PruneResult) -> None:
    raw = compaction.candidates(folder)
    if not result.applied:
        result.compacted_files += len(raw)
        result.compacted_raw_bytes += sum(path.stat().st_size for path in raw)
        return
    compaction_result = compaction.compact(folder)
    result.compacted_files += compaction_result.files
    result.compacted_raw_bytes += compaction_result.raw_bytes
    result.compacted_parquet_bytes = (result.compacted_parquet_bytes or 0) + compaction_result.parquet_bytes
    result.notes += compaction_result.notes


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _seconds(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InputError("--older-than", text, "is not an age; write for example 12h, 30d or 8w")
    return float(match[1]) * _AGE_SECONDS[match[2]]


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError("--larger-than", text, "is not a size; write for example 500MB, 20GB or 1GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])
