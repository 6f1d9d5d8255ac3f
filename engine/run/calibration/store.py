"""Calibrations under a home folder, one file for each fingerprint, and which of them a run may refer to. No torch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.run import run_folder
from engine.run.calibration.fingerprint import Fingerprint
from engine.run.calibration.table import Calibration
from engine.run.run_folder import CalibrationReference, RunStatus
from profilers.model.links import Links

FOLDER = "calibrations"
COMMAND = "workbench calibrate"
NOT_CALIBRATED = f"not calibrated: run `{COMMAND}`"


@dataclass(frozen=True, slots=True)
class CalibrationLookup:
    """The calibration that holds here, or why there is none; ``stale`` is the newest one of another fingerprint."""

    calibration: Calibration | None
    reason: str | None = None
    stale: Calibration | None = None

    def links(self, backend: str) -> Links:
        """What collectives of a backend were measured to reach; empty without a calibration."""
        return self.calibration.links(backend) if self.calibration else {}


#: Of a run that says nothing about a calibration.
UNKNOWN = CalibrationLookup(None, "recorded without a reference to a calibration")


def path_of(home: Path, fingerprint: str) -> Path:
    """The file of a fingerprint's id."""
    return home / FOLDER / f"{fingerprint}.json"


def load(path: Path) -> Calibration | None:
    """A calibration; None if there is no file, or one that this version cannot read."""
    try:
        return Calibration.from_dict(run_folder.read_json(path) or {})
    except (TypeError, ValueError):
        return None


def save(home: Path, new: Calibration) -> Path:
    """Put new curves in the place of older ones, in one step.

    Raises:
        InputError: the home folder cannot be written.
    """
    path = path_of(home, new.fingerprint.id)
    new_keys = {curve.key for curve in new.curves}
    older = load(path)
    older_curves = [curve for curve in older.curves if curve.key not in new_keys] if older else []
    with run_folder.check_writable(home):
        path.parent.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(path, replace(new, curves=(*older_curves, *new.curves)).as_dict())
    return path


def find(home: Path, now: Fingerprint) -> CalibrationLookup:
    """What holds for a machine that is set up like this; only links of this host itself are ever measured."""
    if now.network is not None:
        return CalibrationLookup(None, f"not calibrated: `{COMMAND}` does not measure links of {now.network}")
    exact = load(path_of(home, now.id))
    if exact is not None:
        return CalibrationLookup(exact)
    others = [stored for path in (home / FOLDER).glob("*.json") if (stored := load(path)) is not None]
    if not others:
        return CalibrationLookup(None, NOT_CALIBRATED)
    newest = max(others, key=lambda calibration: calibration.measured_unix)
    return CalibrationLookup(None, _stale(newest, now), newest)


def _stale(newest: Calibration, now: Fingerprint) -> str:
    day = time.strftime("%d %b %Y", time.localtime(newest.measured_unix))
    changed = "; ".join(newest.fingerprint.differences(now))
    return f"the calibration of {day} is stale ({changed}): run `{COMMAND}`"


def reference(home: Path, now: Fingerprint) -> dict[str, Any]:
    """Fields of ``RunStatus``: its fingerprint, and the calibration that it refers to or why there is none."""
    lookup = find(home, now)
    calibration = lookup.calibration
    return {
        "fingerprint": now.as_dict(),
        "calibration": calibration
        and CalibrationReference(calibration.fingerprint.id, calibration.measured_unix),
        "calibration_reason": lookup.reason,
    }


def calibration_of_run(home: Path, status: RunStatus) -> CalibrationLookup:
    """The calibration that a run's status names; a run of an older version names none."""
    named = status.calibration
    calibration = load(path_of(home, named.fingerprint)) if named else None
    if calibration is not None:
        return CalibrationLookup(calibration)
    if named:
        return CalibrationLookup(None, "the calibration that the run refers to is gone or cannot be read")
    return CalibrationLookup(None, status.calibration_reason) if status.calibration_reason else UNKNOWN
