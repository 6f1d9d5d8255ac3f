"""Runs a check in a process of its own, so that nothing it does can hang or end the command."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.run import child_process, run_folder
from workbench.selftest.registry import Check
from workbench.selftest.results import Outcome, Verdict, make_failure, not_possible
from workbench.selftest.worker import ANSWER, REQUEST, name_of

#: What the process and everything it started printed.
OUTPUT = "output.log"
_LOOK_SECONDS = 0.1
_WORKER = "workbench.selftest.worker"


@dataclass(frozen=True, slots=True)
class SelftestRequest:
    """What a person asked for: auto, cpu or cuda, and ranks of checks that take several."""

    device: str = "auto"
    ranks: int = 2


def run(
    check: Check, request: SelftestRequest, scratch: Path, should_stop: Callable[[], bool]
) -> Verdict | None:
    """Its verdict; None if it was stopped. One that is too slow is ended with all that it started, and failed."""
    try:
        process = _start(check, request, scratch)
    except OSError as error:
        return not_possible(no_room_words(error))
    try:
        stopped = _wait(process, check.limit_seconds, should_stop)
    finally:
        child_process.kill(process)  # and its ranks, which are of its group
    if stopped == "asked":
        return None
    if stopped == "late":
        reason = f"took longer than its limit of {check.limit_seconds:.0f} s, and was ended"
        return _judge_missing_verdict(reason, "", scratch)
    return _answer(process.returncode, scratch)


def _start(check: Check, selftest: SelftestRequest, scratch: Path) -> subprocess.Popen[bytes]:
    request = {
        "function": name_of(check.function),
        "needs": name_of(check.needs),
        "device": selftest.device,
        "ranks": selftest.ranks,
    }
    run_folder.write_json(scratch / REQUEST, request)
    with (scratch / OUTPUT).open("wb") as output:
        return child_process.start(
            ["-m", _WORKER, str(scratch)],
            stdin=subprocess.PIPE,  # never written to: it closes when this process ends, and the check ends with it
            stdout=output,
            stderr=output,
        )


def _wait(process: subprocess.Popen[bytes], seconds: float, should_stop: Callable[[], bool]) -> str | None:
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if should_stop():
            return "asked"
        if time.monotonic() > deadline:
            return "late"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
    return None


def _answer(code: int, scratch: Path) -> Verdict:
    """What it found. Where the disk is full, a failure that tells of it says nothing of what the check looks for, and
    with any other one it is told.
    """
    try:
        verdict = msgspec.convert(run_folder.read_json(scratch / ANSWER), Verdict)
    except msgspec.ValidationError:
        return _judge_crash(code, scratch)
    full = why_no_room(scratch, RUN_BYTES) if verdict.outcome is Outcome.FAIL else None
    if full is None:
        return verdict
    if blames_full_disk(verdict.reason):
        return not_possible(f"{full}: {verdict.reason}", verdict.measured)
    return make_failure(f"{verdict.reason} ({full})", verdict.measured)


def _judge_crash(code: int, scratch: Path) -> Verdict:
    exit_text = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last_line = _last_line(scratch / OUTPUT)
    reason = f"its process died without a verdict: {exit_text}{last_line}"
    # A page of a file for which there is no block raises SIGBUS; no other signal comes of a full disk.
    by_itself = code >= 0 or code == -signal.SIGBUS
    return _judge_missing_verdict(reason, last_line, scratch) if by_itself else make_failure(reason)


def _judge_missing_verdict(reason: str, last_line: str, scratch: Path) -> Verdict:
    """A disk may have had no room for the verdict, nor for the words that say so."""
    full = why_no_room(scratch, RUN_BYTES if blames_full_disk(last_line) else VERDICT_BYTES)
    return make_failure(reason) if full is None else not_possible(f"{full}: {reason}")


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""
    return ""


#: How a full disk is told, by the system and in tracebacks.
_WORDS = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
#: What small runs with their traces leave, and what a verdict takes.
RUN_BYTES, VERDICT_BYTES = 16 << 20, 64 << 10


def blames_full_disk(line: str) -> bool:
    """Whether an error or an output tells of a full disk; it need not be that of the scratch folder."""
    return any(word in line for word in _WORDS)


def why_no_room(scratch: Path, bytes_needed: int) -> str | None:
    """That a scratch folder does not take so many bytes; None if it does."""
    trial = scratch / ".room"
    try:
        trial.write_bytes(bytes(bytes_needed))
    except OSError as error:
        return no_room_words(error)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    return None


def no_room_words(error: OSError) -> str:
    """That the folder for temporary files takes none, and what to do; its name would be scrubbed."""
    why = error.strerror or type(error).__name__
    return (
        f"the folder for temporary files takes no more ({why}); free room there, or set TMPDIR to another one"
    )
