"""Where output goes: results to stdout, everything else to stderr, and with --json nothing but one document."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def emit_json(document: object) -> None:
    """The one document of a command."""
    print(dumps(document), flush=True)


def result_console() -> Console:
    """Where results for people go; wide and plain if nobody watches."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(width=width, highlight=False, emoji=False, soft_wrap=False)


def progress_console() -> Console:
    """Where progress goes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def report_console() -> Console:
    """Where a report goes beside the output of a job, which has stdout."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(width=width, stderr=True, highlight=False, emoji=False)


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """Send what anything prints meanwhile, child processes and C++ too, to stderr."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


def dumps(tree: object) -> str:
    """One JSON document; numbers that JSON cannot hold are null."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(tree), indent=2).decode()
    except (TypeError, ValueError, OverflowError):  # what only Python's own writer knows
        return json.dumps(_finite(tree), indent=2)
    return text if text.isascii() else _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
