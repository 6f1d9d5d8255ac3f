"""A lock that one process holds at a time, and that nobody holds once that process is gone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

TURN = ".turn"


class FileLock:
    """Held while entered; may be entered again inside. The file is opened anew each time, so that no child of ours can
    go on holding it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth, self._file = 0, -1

    def __enter__(self) -> None:
        if self._depth == 0:
            self._file = _locked(self._path)
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            os.close(self._file)


def _locked(path: Path) -> int:
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
    except BaseException:
        os.close(opened)
        raise
    return opened
