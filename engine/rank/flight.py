"""What a rank can still tell when it hangs: a thread of its own writes the Flight Recorder's dump when asked to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch.distributed as dist

from engine.comm.channel import Channel
from engine.comm.context import Groups
from engine.run.progress import Progress
from engine.run.run_folder import FLIGHT, write_json
from profilers.collectives import flight_recorder

_POLL_SECONDS = 0.25


@contextlib.contextmanager
def listening(progress: Progress | None, rank: int, folder: Path, made: Groups) -> Iterator[None]:
    """While inside, the launcher can ask this rank for its last collectives, whatever the main thread waits for."""
    if progress is None:
        yield
        return
    over = threading.Event()
    about = {"since_unix": time.time(), "axes": made.axes, "members": _members(made)}
    thread = threading.Thread(
        target=_listen, args=(over, progress, folder / FLIGHT, rank, about), name="flight", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _listen(over: threading.Event, progress: Progress, place: Path, rank: int, about: dict[str, Any]) -> None:
    while not over.wait(_POLL_SECONDS):
        if progress.dump_requested():
            with contextlib.suppress(OSError):  # a full disk: the launcher says that this rank left nothing
                place.mkdir(exist_ok=True)
                write_json(place / f"rank-{rank}.json", about | {"dumps": _dumps()})
            return


def _dumps() -> list[str]:
    return [dump.decode() for dump in flight_recorder.take(dist.get_backend())]


def _members(made: Groups) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for field in fields(made):
        held = getattr(made, field.name)
        group = held.group if isinstance(held, Channel) else held
        if isinstance(group, dist.ProcessGroup):
            members[group.group_name] = dist.get_process_group_ranks(group)
    return members
