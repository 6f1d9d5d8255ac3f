"""All labs of this machine: which stand, which are left over, and the one that is kept across runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.config.formulas.network import Shape
from engine.launch.lab import lab
from engine.launch.lab.build import LabError
from engine.launch.lab.lab import Lab
from engine.launch.lab.links import End
from engine.run import netns, run_folder
from profilers.system import procfs
from profilers.system.procfs import InterfaceCounters

_LOCK = netns.FOLDER.parent / "workbench-lab.lock"
_RANK_LOG = re.compile(rf"(.+)/{run_folder.LOGS}/rank-(\d+)\.log")


class LabRank(NamedTuple):
    """A rank of a run, by the name of its folder."""

    run: str
    rank: int


def list_labs() -> list[Lab]:
    """Every lab of which at least a part is there, whoever owns it."""
    labs = {lab.from_namespace(path.name) for path in netns.FOLDER.glob("workbench-lab-*")} - {None}
    return sorted((lab for lab in labs if lab), key=lambda lab: (lab.pid, lab.serial, lab.shape.code()))


def sweep() -> list[Lab]:
    """Remove the labs whose owners are gone, and tell which they were."""
    deserted_labs = [lab for lab in list_labs() if lab.deserted]
    for deserted in deserted_labs:
        deserted.tear_down()
    return deserted_labs


def keep(shape: Shape) -> Lab:
    """The lab that stands until it is taken down, set up if it does not stand yet; leftovers of others are removed.

    Raises:
        LabError: it could not be set up, or a run uses it while a link of it is down.
    """
    with _registry_lock():
        sweep()
        new_lab = lab.make_lasting_lab(shape)
        if not new_lab.complete:
            lock = _lock(new_lab)
            if lock is None:
                raise LabError(
                    f"the lab of {shape} has a link that is down, and a run uses it; stop that run"
                )
            new_lab.tear_down()
            os.close(lock)
            new_lab.set_up()
    return new_lab


def take_down() -> tuple[list[Lab], list[Lab]]:
    """Remove kept labs and leftovers; returns those and the ones that somebody uses, which stay."""
    with _registry_lock():
        removed, busy = sweep(), []
        for lab in list_labs():
            lock = _lock(lab) if lab.is_lasting else None
            if lock is None:
                busy.append(lab)
                continue
            lab.tear_down()
            removed.append(lab)
            os.close(lock)
    return removed, busy


def hold(lasting: Lab) -> int | None:
    """A descriptor that holds a kept lab for this process until it is closed; None if it is not complete or in use."""
    if not lasting.complete:
        return None
    return _lock(lasting)


def traffic(end: End) -> InterfaceCounters | None:
    """Counters of an end of a link since it came up; None if it is not there."""
    namespace, interface = end
    try:
        text = netns.run_inside(namespace, Path("/proc/thread-self/net/dev").read_bytes)
    except OSError:
        return None
    return procfs.interfaces(text).get(interface)


def find_lab_ranks(namespaces: Sequence[str]) -> list[list[LabRank]]:
    """The ranks of runs under way in each namespace, by the logs that their processes write."""
    numbers = {
        (netns.FOLDER / name).stat().st_ino: place
        for place, name in enumerate(namespaces)
        if (netns.FOLDER / name).exists()
    }
    ranks_of: list[set[LabRank]] = [set() for _ in namespaces]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = numbers.get((process / "ns/net").stat().st_ino)
            match = None if place is None else _RANK_LOG.fullmatch(str((process / "fd/1").readlink()))
        except OSError:
            continue  # it has ended, or is not ours to look at
        if place is not None and match and _is_under_way(Path(match[1])):
            ranks_of[place].add(LabRank(Path(match[1]).name, int(match[2])))
    return [sorted(ranks) for ranks in ranks_of]


def _is_under_way(folder: Path) -> bool:
    return run_folder.RunStatus.from_folder(folder).state == "running"


def _lock(lasting: Lab) -> int | None:
    """A descriptor that keeps others from a kept lab; None if one of them has it. One that lost its switch is free."""
    path = netns.FOLDER / lasting.switch
    try:
        handle = os.open(path if path.exists() else os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if path.exists():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


@contextlib.contextmanager
def _registry_lock() -> Iterator[None]:
    """While this lasts no other process sets up or removes kept labs."""
    # Not the folder of the namespaces: ``ip netns add`` locks that one itself.
    handle = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
