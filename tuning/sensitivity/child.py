"""Starts the process that works out fANOVA or SHAP, tells how far it is, and gives it up when its time is over."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.config.errors import WorkbenchError
from tuning.sensitivity import kept
from tuning.sensitivity.extra import NAMES, Method, check

LIMIT_SECONDS = 300.0
#: -P: a folder called ``tuning`` where somebody happens to be is not ours.
_COMMAND = ["-P", "-m", "tuning.sensitivity.worker"]
Tell = Callable[[float, str], None]


class AnalysisError(WorkbenchError):
    """The process ended without an outcome. The journal and what was worked out before are as they were."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be worked out over so many ended trials of the study in ``folder``, and in how many seconds."""

    folder: Path
    method: Method
    trials: int
    limit_seconds: float = LIMIT_SECONDS


def outcome(asked: Asked, tell: Tell = lambda *_: None) -> dict[str, Any]:
    """The outcome that is kept for these trials, or else worked out now. Where the time is over, what there is of it.

    Raises:
        InputError: a package that the method needs is not installed.
        AnalysisError: the process failed, was killed, or had nothing yet when its time was over.
    """
    known = _kept(asked)
    if known is not None and known.get("complete"):
        return known
    check(asked.method)
    ended, last_words = _run(asked, tell)
    found = _kept(asked)
    if found is not None and (ended == 0 or not found.get("complete")):
        return found
    raise AnalysisError(
        f"{NAMES[asked.method]} {_why(asked, ended, last_words)}; nothing of the study is lost"
    )


def _kept(asked: Asked) -> dict[str, Any] | None:
    return kept.read(asked.folder, asked.method, asked.trials)


def _run(asked: Asked, tell: Tell) -> tuple[int | None, str]:
    """How the process ended, None if its time was over, and the last line that it said."""
    over = threading.Event()
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, *_COMMAND, str(asked.folder), asked.method]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            timer = threading.Timer(asked.limit_seconds, _give_up, (process, over))
            timer.start()
            try:
                _listen(process, tell)
            finally:
                timer.cancel()
                process.kill()
        return None if over.is_set() else process.returncode, _last_line(errors)


def _give_up(process: subprocess.Popen[str], over: threading.Event) -> None:
    over.set()
    process.kill()


def _listen(process: subprocess.Popen[str], tell: Tell) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            told = json.loads(line)
            tell(float(told["part"]), str(told["doing"]))
        except (ValueError, TypeError, KeyError):
            continue  # a library's own words
    process.wait()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _why(asked: Asked, ended: int | None, last_words: str) -> str:
    if ended is None:
        return f"had nothing yet after {asked.limit_seconds:g} s; give it longer with --limit SECONDS"
    if ended < 0:
        return f"was killed by signal {-ended}; ask again"
    return f"failed: {last_words or f'exit code {ended}'}"
