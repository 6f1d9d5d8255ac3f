"""Finished runs of a home as trials, read from their small documents alone.

What was read is kept in one file. Records are not opened, so runs that were pruned count: a run's summary has the
mean step, and its largest peak of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import environment
from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load, parse
from engine.run import run_folder
from engine.run.outcome import Ending
from engine.run.run_folder import RunStatus
from tuning.predict.model.compute import Device
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine

#: What tells groups of trials apart, which are held out as a whole.
_LAYOUT = ("dp", "tp", "pp", "cp")


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration that ran to its end, and what one of its steps took: medians over its measured steps.

    ``seconds`` are those of the slowest rank; ``cpu_seconds`` are of each rank, all threads together, or none where
    they were not read. ``peak_bytes`` are of the rank that held most (``profilers.analysis.memory``): resident bytes on
    a CPU, the allocator's on a GPU; None if they were not recorded.
    """

    config: RunConfig
    seconds: float
    cpu_seconds: tuple[float, ...]
    peak_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "config": json.loads(self.config.dumps()),
            "seconds": self.seconds,
            "cpu_seconds": list(self.cpu_seconds),
            "peak_bytes": self.peak_bytes,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trial:
        """What ``as_dict`` wrote."""
        cpu = tuple(map(float, data["cpu_seconds"]))
        return cls(parse(data["config"]), float(data["seconds"]), cpu, data.get("peak_bytes"))


def is_complete(status: RunStatus) -> bool:
    """Whether a status is that of a run whose ranks came to their end; nobody simulated it."""
    completed = status.outcome is not None and status.outcome.ending == Ending.COMPLETED
    return completed and status.backend != "simulated"


def layout(config: RunConfig) -> str:
    """The name of its group."""
    return " ".join(str(getattr(config.parallel, name)) for name in _LAYOUT)


def join_machines(machines: Sequence[Machine]) -> Machine:
    """One machine whose figures are columns, a row for each."""
    device = zip(*(machine.device for machine in machines), strict=True)
    links = zip(*(machine.links for machine in machines), strict=True)
    return Machine(Device(*map(np.array, device)), Links(*map(np.array, links)))


#: What was read of runs that have ended, in their home; made anew where it is missing or of another version.
KEPT = "trials.json"
_FORMAT = 1
_FILES = (run_folder.STATUS, run_folder.SUMMARY)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run whose ranks came to their end. ``fingerprint`` is that of its machine, None in runs of older versions.

    Of one that cannot be a trial ``trial`` is None and ``reason`` says why. Core seconds of ranks are not read.
    """

    run: str
    backend: str
    fingerprint: Mapping[str, Any] | None
    trial: Trial | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        document = {"run": self.run, "backend": self.backend, "fingerprint": self.fingerprint}
        return {**document, "trial": self.trial and self.trial.as_dict(), "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FinishedRun:
        """What ``as_dict`` wrote."""
        trial = Trial.from_dict(data["trial"]) if data["trial"] else None
        return cls(data["run"], data["backend"], data["fingerprint"], trial, data["reason"])


def read_finished_run(folder: Path) -> FinishedRun | None:
    """A run folder's; None if it did not come to its end, or nobody but a model ran it."""
    status = RunStatus.from_folder(folder)
    if not is_complete(status):
        return None
    identity = folder.name, str(status.backend), status.fingerprint
    if (folder / run_folder.STARTED).exists():
        return FinishedRun(*identity, None, "was changed as it went")
    summary = run_folder.read_json(folder / run_folder.SUMMARY) or {}
    step = summary.get("step_seconds") or {}
    seconds = step.get("mean") or step.get("median")  # older runs have no mean
    if not seconds:
        return FinishedRun(*identity, None, "has no measured step")
    try:
        config = load(folder / run_folder.CONFIG)
    except InputError as error:
        return FinishedRun(*identity, None, str(error))
    if environment.requested_settings(config.environment):
        return FinishedRun(*identity, None, "had environment variables, which are not modelled")
    return FinishedRun(*identity, Trial(config, float(seconds), (), summary.get("peak_memory_bytes")))


def read_finished_runs(folders: Iterable[Path], cache_file: Path | None = None) -> list[FinishedRun]:
    """Those of the run folders that ran to their end, in their order.

    ``cache_file`` is a file with what was read before; it is brought up to date where that is possible.
    """
    cached = _read(cache_file) if cache_file else {}
    new_cache: dict[str, list[Any]] = {}
    runs = list[FinishedRun | None]()
    for folder in folders:
        run, new_cache[folder.name] = _load_cached(folder, cached.get(folder.name))
        runs.append(run)
    if cache_file and new_cache != cached:
        _write(cache_file, new_cache)
    return [run for run in runs if run is not None]


def _load_cached(folder: Path, entry: list[Any] | None) -> tuple[FinishedRun | None, list[Any]]:
    """A run, and what is to be kept of it: its files' mark and what they told."""
    mark = _mark(folder)
    if entry and entry[0] == mark:
        with contextlib.suppress(InputError, KeyError, TypeError, ValueError):
            return (FinishedRun.from_dict(entry[1]) if entry[1] else None), entry
    run = read_finished_run(folder)
    return run, [mark, run and run.as_dict()]


def _mark(folder: Path) -> str:
    parts = list[str]()
    for name in _FILES:
        try:
            stat = (folder / name).stat()
            parts.append(f"{stat.st_mtime_ns}.{stat.st_size}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


def _read(cache_file: Path) -> dict[str, list[Any]]:
    document = run_folder.read_json(cache_file) or {}
    runs = document.get("runs") if document.get("format") == _FORMAT else None
    return runs if isinstance(runs, dict) else {}


def _write(cache_file: Path, runs: dict[str, list[Any]]) -> None:
    """Whoever reads meanwhile sees the old or the new file; a home that cannot be written goes without."""
    scratch = cache_file.with_name(f".{cache_file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        scratch.write_text(json.dumps({"format": _FORMAT, "runs": runs}), encoding="utf-8")
        scratch.replace(cache_file)
