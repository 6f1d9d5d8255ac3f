"""A real run on two warm ranks that goes on until a test is over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from engine.run import progress
from engine.session import Session
from tests.engine.runs.test_faults import LONG
from tests.support.runs import execute, small
from tests.support.waiting import wait_until


@contextlib.contextmanager
def going_on(home: Path, **values: object) -> Iterator[Path]:
    """The folder of the run, once it has passed some steps; afterwards it is stopped and summed up."""
    over, began = threading.Event(), threading.Event()
    folders: list[Path] = []

    def start(folder: Path) -> None:
        folders.append(folder)
        began.set()

    with Session(home) as session:
        config = small(**LONG | {"train__timeout_seconds": 280.0} | values)
        run = threading.Thread(target=execute, args=(session, config, over.is_set, start))
        run.start()
        try:
            assert began.wait(60)
            assert wait_until(lambda: at_least(folders[0], 4), 60)
            yield folders[0]
        finally:
            over.set()
            run.join()


def at_least(folder: Path, step: int) -> bool:
    """Whether all ranks of a run are in a step or beyond."""
    return min((rank.step for rank in progress.read(folder)), default=0) >= step
