"""Checks one after the other: each in a process of its own, its evidence collected, the document written after each."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.config.errors import InputError
from engine.run import run_folder
from workbench.selftest import evidence, isolation
from workbench.selftest.checks.machine import PACKAGE
from workbench.selftest.evidence import TEXT
from workbench.selftest.isolation import SelftestRequest
from workbench.selftest.redaction import Redactor
from workbench.selftest.registry import CHECKS, NAMES, Check
from workbench.selftest.results import FOLDER, Row, Selftest, Verdict, not_possible, save


def select_checks(only: str | None, skip: str | None) -> tuple[Check, ...]:
    """The checks that are asked for, in their order.

    Raises:
        InputError: a name is unknown, or none is left.
    """
    wanted, left_out = _names("--only", only), _names("--skip", skip)
    selected = tuple(c for c in CHECKS if (only is None or c.name in wanted) and c.name not in left_out)
    if not selected:
        raise InputError(
            "--skip" if skip else "--only", skip or only, "leaves no check; name fewer or others"
        )
    return selected


def folder_for(home: Path, out: str | None) -> Path:
    """A new folder for evidence; under the home folder unless another one was asked for.

    Raises:
        InputError: it cannot be written, is not empty, or its zip would replace a file.
    """
    if out is not None and not out.strip():
        raise InputError("--out", out, "is empty; name a new folder")
    folder = home / FOLDER / run_folder.new_run_id() if out is None else Path(out).expanduser().absolute()
    field = "home" if out is None else "--out"
    try:
        if folder.name and os.path.lexists(packed := evidence.packed_path(folder)):  # "/" has no name
            raise InputError(field, str(folder), f"its zip would replace {packed}; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(field, str(folder), "is not empty; name a new folder")
        (folder / evidence.README).write_text(TEXT, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):  # half a file, and the folder would not be empty the next time
            (folder / evidence.README).unlink(missing_ok=True)
        remedy = f"cannot be written ({error.strerror}); name another folder"
        raise InputError(field, str(folder), remedy) from None
    return folder


def run(
    folder: Path,
    checks: Sequence[Check],
    request: SelftestRequest,
    scrubber: Redactor,
    should_stop: Callable[[], bool],
    report: Callable[[Check, Row | None], None],
) -> Selftest:
    """All checks, or those up to a stop. ``report`` hears of each as it begins, and with its row as it ends."""
    started = time.monotonic()
    version = importlib.metadata.version(PACKAGE)
    names = [check.name for check in checks]
    selftest = save(folder, Selftest(folder.name, version, request.device, request.ranks, time.time(), names))
    for check in checks:
        report(check, None)
        row, not_kept = _row(folder, check, request, scrubber, should_stop)
        selftest = replace(
            selftest, seconds=time.monotonic() - started, not_kept=selftest.not_kept | not_kept
        )
        if row is None:
            selftest = save(folder, replace(selftest, interrupted=check.name))
            break
        selftest = replace(selftest, checks=[*selftest.checks, row])
        selftest = save(folder, replace(selftest, complete=len(selftest.checks) == len(checks)))
        report(check, row)
    return selftest


def _row(
    folder: Path, check: Check, request: SelftestRequest, scrubber: Redactor, should_stop: Callable[[], bool]
) -> tuple[Row | None, dict[str, str]]:
    """How it ended, None if it was stopped; and what of its evidence could not be kept, with the reasons."""
    started = time.monotonic()
    verdict, files, not_kept = _run_check(folder, check, request, scrubber, should_stop)
    if verdict is None:
        return None, not_kept
    seconds = time.monotonic() - started
    reason = " ".join(scrubber.text(verdict.reason).split())
    measured = dict(verdict.measured)
    row = Row(check.name, check.title, check.proves, verdict.outcome.value, reason, seconds, measured, files)
    return row, not_kept


def _run_check(
    folder: Path, check: Check, request: SelftestRequest, scrubber: Redactor, should_stop: Callable[[], bool]
) -> tuple[Verdict | None, list[str], dict[str, str]]:
    """In a scratch folder outside of the evidence: what lies there is not scrubbed yet."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix="workbench-selftest-"))
    except OSError as error:
        return not_possible(isolation.no_room_words(error)), [], {}
    try:
        verdict = isolation.run(check, request, scratch, should_stop)
        return verdict, *evidence.collect(scratch, folder, check.name, scrubber)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _names(option: str, text: str | None) -> set[str]:
    names = {name.strip() for name in (text or "").split(",")} - {""}
    unknown = sorted(names - set(NAMES))
    if unknown:
        raise InputError(option, ", ".join(unknown), f"no such check; there are {', '.join(NAMES)}")
    return names
