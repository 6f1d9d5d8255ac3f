"""All labs of this machine: which stand, which are left over, and the one that is kept across runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from engine import netns
from engine.launch import lab
from engine.launch.lab import Lab
from profilers import procfs
from profilers.procfs import Traffic

_LOCK = netns.FOLDER.parent / "workbench-lab.lock"


def standing() -> list[Lab]:
    """Every lab of which at least a part is there, whoever owns it."""
    found = {lab.named(path.name) for path in netns.FOLDER.glob("workbench-lab-*")} - {None}
    return sorted(
        (one for one in found if one), key=lambda one: (one.pid, one.serial, one.hosts, one.rate_kbit)
    )


def sweep() -> list[Lab]:
    """Remove the labs whose owners are gone, and tell which they were."""
    gone = [one for one in standing() if one.deserted]
    for one in gone:
        one.down()
    return gone


def keep(hosts: int, rate_mbit: float | None) -> Lab:
    """The lab that stands until it is taken down, set up if it does not stand yet; leftovers of others are removed.

    Raises:
        LabError: it could not be set up.
    """
    with _alone():
        sweep()
        kept = lab.kept(hosts, rate_mbit)
        if not kept.complete:
            kept.down()
            kept.up()
    return kept


def take_down() -> tuple[list[Lab], list[Lab]]:
    """Remove kept labs and leftovers; returns those and the ones that somebody uses, which stay."""
    with _alone():
        removed, left = sweep(), []
        for one in standing():
            held = hold(one) if one.kept else None
            if one.kept and (held is not None or not one.complete):
                one.down()
                removed.append(one)
            else:
                left.append(one)
            if held is not None:
                os.close(held)
    return removed, left


def hold(kept: Lab) -> int | None:
    """A descriptor that holds a kept lab for this process until it is closed; None if it is not complete or in use."""
    if not kept.complete:
        return None
    try:
        handle = os.open(netns.FOLDER / kept.switch, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def traffic(namespace: str) -> Traffic | None:
    """Counters of a host's data interface since it came up; None if it is not there."""
    try:
        text = netns.inside(namespace, Path("/proc/thread-self/net/dev").read_bytes)
    except OSError:
        return None
    return procfs.interfaces(text).get(netns.DATA)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While this lasts no other process sets up or removes kept labs."""
    # Not the folder of the namespaces: ``ip netns add`` locks that one itself.
    handle = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
