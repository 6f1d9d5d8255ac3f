"""Ctrl-C, SIGTERM and a terminal that closes as a flag, so that a running trial can end in order."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While entered, the first signal sets ``seen``; a second one is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.seen = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            obeyed = [number for number in SIGNALS if number is not signal.SIGHUP or not _is_ignored(number)]
            self._before = {number: signal.signal(number, self._note) for number in obeyed}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = signal.Signals(number).name


def _is_ignored(number: signal.Signals) -> bool:
    """As ``nohup`` asks for."""
    return signal.getsignal(number) is signal.SIG_IGN
