"""Descriptors of this process: as many open as in one that ran for long, and how many there are."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

#: ``select()`` refuses this number and all above it.
FD_SETSIZE = 1024
_FOLDER = Path("/proc/self/fd")


def open_now() -> list[str]:
    """What each open descriptor leads to; nothing where the system does not tell."""
    found: list[str] = []
    if not _FOLDER.exists():
        return found
    for entry in _FOLDER.iterdir():
        with contextlib.suppress(OSError):  # the one with which this folder is read
            found.append(str(entry.readlink()))
    return found


@contextlib.contextmanager
def beyond_select() -> Iterator[None]:
    """While inside, every descriptor that is opened has a number that ``select()`` refuses."""
    wanted = FD_SETSIZE + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * wanted:
        pytest.skip(f"a process may open {hard} files here")
    held = []
    try:
        if soft != resource.RLIM_INFINITY and soft < 2 * wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * wanted, hard))
        while not held or held[-1] < FD_SETSIZE:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
