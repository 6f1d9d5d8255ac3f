"""The document of a selftest and where it lies: written after each check, read by the page. No torch.

How a check ends: passed, failed, or not possible here, with its reason and what was measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from engine.run import run_folder

FOLDER = "selftest"
DOCUMENT = "checks.json"
COMMAND = "workbench selftest"
#: The degrees that heads, layers and experts of the checks can be split by.
RANKS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One check as it ended: ``outcome`` is pass, fail or not_possible; ``evidence`` are files of the folder."""

    name: str
    title: str
    proves: str
    outcome: str
    reason: str
    seconds: float
    measured: dict[str, float | int | None] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Selftest:
    """``complete`` says that no check that was asked for is missing; ``interrupted`` is the one that was cut off.
    ``not_kept`` are files that could not be written, each with the reason.
    """

    id: str
    workbench: str
    device: str
    ranks: int
    started_unix: float
    asked: list[str]
    seconds: float = 0.0
    complete: bool = False
    interrupted: str | None = None
    checks: list[Row] = field(default_factory=list)
    not_kept: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the number of each outcome."""
        plain = asdict(self)
        return {**plain, "outcomes": self.outcomes, "checks": plain["checks"]}

    @property
    def outcomes(self) -> dict[str, int]:
        """How many ended how."""
        counts = Counter(row.outcome for row in self.checks)
        return {outcome: counts[outcome] for outcome in ("pass", "fail", "not_possible")}

    @property
    def good(self) -> bool:
        """Whether all checks ran, and none failed."""
        return self.complete and not self.outcomes["fail"]


def save(folder: Path, selftest: Selftest) -> Selftest:
    """Replace the document in one step; it as it is now, with the reason where it could not be written."""
    reasons = {name: reason for name, reason in selftest.not_kept.items() if name != DOCUMENT}
    selftest = replace(selftest, not_kept=reasons)
    try:
        run_folder.write_json(folder / DOCUMENT, selftest.as_dict())
    except OSError as error:
        return replace(selftest, not_kept=reasons | {DOCUMENT: error.strerror or type(error).__name__})
    return selftest


def load(folder: Path) -> Selftest | None:
    """What a folder holds; None if it is none of a selftest, or of a version that cannot be read."""
    try:
        return msgspec.convert(run_folder.read_json(folder / DOCUMENT), Selftest)
    except msgspec.ValidationError:
        return None


def newest(home: Path) -> tuple[Path, Selftest] | None:
    """The latest selftest of a home folder, with its folder."""
    folders = sorted((path.parent for path in (home / FOLDER).glob(f"*/{DOCUMENT}")), reverse=True)
    return next(((folder, selftest) for folder in folders if (selftest := load(folder)) is not None), None)


class Outcome(StrEnum):
    """Every way a check can end."""

    PASS = "pass"
    FAIL = "fail"
    NOT_POSSIBLE = "not_possible"


Number = float | int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` is one line in plain words; ``measured`` numbers have their unit at the end of their names."""

    outcome: Outcome
    reason: str
    measured: dict[str, Number] = field(default_factory=dict)


def make_pass(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """What was looked for is so."""
    return Verdict(Outcome.PASS, reason, measured or {})


def make_failure(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """It is not."""
    return Verdict(Outcome.FAIL, reason, measured or {})


def not_possible(reason: str, measured: dict[str, Number] | None = None) -> Verdict:
    """It cannot be told on this machine."""
    return Verdict(Outcome.NOT_POSSIBLE, reason, measured or {})


def verdict_of(problems: list[str], success: str, measured: dict[str, Number]) -> Verdict:
    """Failed with all problems, passed if there is none."""
    return make_failure("; ".join(problems), measured) if problems else make_pass(success, measured)
