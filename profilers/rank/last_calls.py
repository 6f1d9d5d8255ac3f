"""What a rank can still tell when it hangs: a thread of its own writes the Flight Recorder's dump when asked to."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from profilers.collectives import flight_recorder

_POLL_SECONDS = 0.25


class DumpContext(NamedTuple):
    """What a dump does not say: since when the rank runs, the axes of its groups, and their members, by name."""

    since_unix: float
    axes: dict[str, str]
    members: dict[str, list[int]]


@contextlib.contextmanager
def answer_dump_requests(
    dump_requested: Callable[[], bool], path: Path, context_now: Callable[[], DumpContext]
) -> Iterator[None]:
    """While inside, whoever asks gets this rank's last collectives in a file, whatever the main thread waits for."""
    over = threading.Event()
    thread = threading.Thread(
        target=_listen, args=(over, dump_requested, path, context_now), name="flight", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _listen(
    over: threading.Event,
    dump_requested: Callable[[], bool],
    path: Path,
    context_now: Callable[[], DumpContext],
) -> None:
    while not over.wait(_POLL_SECONDS):
        if dump_requested():
            with contextlib.suppress(OSError):  # a full disk: the launcher says that this rank left nothing
                path.parent.mkdir(exist_ok=True)
                scratch = path.with_name(f".{path.name}.{os.getpid()}")
                scratch.write_text(
                    json.dumps(context_now()._asdict() | {"dumps": _dumps()}), encoding="utf-8"
                )
                scratch.replace(path)
            return


def _dumps() -> list[str]:
    return [dump.decode() for dump in flight_recorder.take(dist.get_backend())]
