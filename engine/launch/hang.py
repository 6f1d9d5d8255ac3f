"""Asks the ranks of a run that hangs which collective they wait in, and finds who did not come."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import psutil

from engine.outcome import Ending, RunOutcome
from engine.progress import Progress, RankProgress
from engine.rundir import FLIGHT, read_json
from profilers.collectives import hang
from profilers.collectives.flight_recorder import Dump, DumpError, joined, parse
from profilers.collectives.hang import Stuck

#: Ranks look for the request four times a second; one that is stopped never answers.
_PATIENCE_SECONDS = 1.5
_POLL_SECONDS = 0.05


def explain(progress: Progress, folder: Path) -> Stuck | None:
    """The collective that ranks wait in; None if their recorders know of none.

    Waits up to 1.5 s for ranks that do not answer.
    """
    progress.request_dump()
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until and len(_files(folder)) < progress.world_size:
        time.sleep(_POLL_SECONDS)
    dumps: dict[int, Dump] = {}
    axes: dict[str, str] = {}
    for rank, path in _files(folder).items():
        told = read_json(path)
        if told is None:
            continue
        try:
            dump = joined([parse(one.encode(), told["since_unix"]) for one in told["dumps"]])
        except (DumpError, KeyError, AttributeError):
            continue
        members = {group: tuple(ranks) for group, ranks in told.get("members", {}).items()}
        dumps[rank] = replace(dump, members=dump.members | members)
        axes |= told.get("axes", {})
    return hang.find(dumps, axes, progress.world_size)


def outcome_of(
    culprit: RankProgress, known: bool, waited_in: Stuck | None, last_lines: tuple[str, ...] = ()
) -> RunOutcome:
    """A hang in words: the rank that stands still, and the collective that others wait in. One that is not ``known`` to
    hold up the others is not blamed.
    """
    where = f"in step {culprit.step}" if culprit.step >= 0 else "before its first step"
    reason = f"rank {culprit.rank} made no progress for {culprit.age_seconds:.0f} s {where}"
    reason += "" if known else "; it waited, and which rank held the others up is not known"
    reason += f"; {waited_in}" if waited_in else ""
    return RunOutcome(Ending.HANG, reason, culprit.rank if known else None, culprit.phase, last_lines)


def stopped_processes(ranks: list[RankProgress], patience_seconds: float) -> frozenset[int]:
    """Of the ranks that have not moved for so long, the processes that the kernel reports as stopped."""
    stopped = set()
    for rank in ranks:
        if rank.age_seconds > patience_seconds:
            try:
                if psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED:
                    stopped.add(rank.pid)
            except psutil.Error:
                continue
    return frozenset(stopped)


def _files(folder: Path) -> dict[int, Path]:
    return {int(path.stem.removeprefix("rank-")): path for path in (folder / FLIGHT).glob("rank-*.json")}
