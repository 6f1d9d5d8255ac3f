"""Network namespaces of Linux: entering one, and whether this process may make them."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

#: Where ``ip netns`` keeps named namespaces.
FOLDER = Path("/var/run/netns")
#: The interface of a host in the lab for everything but training; and what the counters of an island's link to the
#: others are called.
CONTROL, UPLINK = "control", "uplink"
_CLONE_NEWNET = 0x40000000
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_COMMANDS = ("ip", "tc")

Result = TypeVar("Result")


def unavailability() -> str | None:
    """Why this process cannot make namespaces and shape their links, with what to do; None if it can."""
    for command in _COMMANDS:
        if not shutil.which(command):
            return f"there is no `{command}` command; install iproute2 (Linux only)"
    lacking = [name for name, bit in _CAPABILITIES.items() if not _capable(bit)]
    if lacking:
        return (
            f"this user lacks {' and '.join(lacking)}; run as root, or in a container with those capabilities"
        )
    return None


def enter(name: str) -> None:
    """Move the calling thread, and those it starts from now on, into a named namespace.

    Raises:
        OSError: there is no such namespace, or this process may not enter it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(handle)


def run_inside(name: str, function: Callable[[], Result]) -> Result:
    """What ``function`` returns or raises on a thread in a namespace; sockets it makes stay there for good."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter(name)
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _capable(bit: int) -> bool:
    try:
        rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    effective = next((row.split()[1] for row in rows if row.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> bit & 1)
