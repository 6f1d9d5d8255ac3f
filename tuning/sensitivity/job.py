"""The process that works out fANOVA or SHAP: started, followed, ended when its time is over; its outcome is kept.

Outcomes lie in the study's folder under the number of trials. Whether the extra is installed is asked without
importing it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from engine.config.errors import InputError, WorkbenchError
from engine.run import child_process, run_folder
from tuning.sensitivity import outcomes
from tuning.sensitivity.outcomes import Fanova, Method, Shap, StoredOutcome

SENSITIVITY_METHODS: tuple[Method, ...] = ("fanova", "shap")
NAMES: dict[Method, str] = {"fanova": "fANOVA", "shap": "SHAP"}
INSTALL = "pip install 'training-workbench[sensitivity]'"
_NEEDS: dict[Method, dict[str, str]] = {
    "fanova": {"sklearn": "scikit-learn"},
    "shap": {"sklearn": "scikit-learn", "shap": "shap"},
}


def missing(method: Method) -> list[str]:
    """Names of the packages that a method needs and that are not installed."""
    return [name for module, name in _NEEDS[method].items() if importlib.util.find_spec(module) is None]


def missing_package(method: Method) -> str:
    """One line that says what to install; empty where nothing is missing."""
    names = missing(method)
    return f"needs {' and '.join(names)}: {INSTALL}" if names else ""


def check(method: Method) -> None:
    """Refuse a method whose packages are not there.

    Raises:
        InputError: one of them is missing.
    """
    if missing_package(method):
        raise InputError("method", method, missing_package(method))


FOLDER = "sensitivity"
RESULT_TYPES: dict[Method, type[Fanova] | type[Shap]] = {"fanova": Fanova, "shap": Shap}
Outcome = TypeVar("Outcome", bound=Fanova | Shap)


def path(study: Path, method: Method, trials: int) -> Path:
    """Where the outcome of a method over so many ended trials lies."""
    return study / FOLDER / f"{method}-{trials}.json"


def write(study: Path, trials: int, outcome: Fanova | Shap) -> None:
    """Keep an outcome, whole or not at all."""
    (study / FOLDER).mkdir(exist_ok=True)
    run_folder.write_json(path(study, outcome.method, trials), StoredOutcome(trials, outcome).as_dict())


def read(study: Path, kind: type[Outcome], trials: int) -> StoredOutcome[Outcome] | None:
    """The outcome over exactly so many trials, or None."""
    document = run_folder.read_json(path(study, kind.method, trials))
    return outcomes.parse_stored(kind, document) if document else None


def newest(study: Path, kind: type[Outcome], trials: int) -> StoredOutcome[Outcome] | None:
    """The outcome over the most trials, of at most so many; a study only grows."""
    names = (
        re.fullmatch(rf"{kind.method}-(\d+)\.json", file.name) for file in (study / FOLDER).glob("*.json")
    )
    counts = (int(name[1]) for name in names if name)
    for count in sorted((count for count in counts if count <= trials), reverse=True):
        stored = read(study, kind, count)
        if stored is not None:
            return stored
    return None


LIMIT_SECONDS = 300.0
_WORKER = "tuning.sensitivity.worker"
Tell = Callable[[float, str], None]


class AnalysisError(WorkbenchError):
    """The process ended without an outcome. The journal and what was worked out before are as they were."""


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What is to be worked out over so many ended trials of the study in ``folder``, and in how many seconds."""

    folder: Path
    method: Method
    trials: int
    limit_seconds: float = LIMIT_SECONDS


def outcome(request: AnalysisRequest, tell: Tell = lambda *_: None) -> StoredOutcome[Fanova | Shap]:
    """The outcome that is kept for these trials, or else worked out now. Where the time is over, what there is of it.

    Raises:
        InputError: a package that the method needs is not installed.
        AnalysisError: the process failed, was killed, or had nothing yet when its time was over.
    """
    stored = read(request.folder, RESULT_TYPES[request.method], request.trials)
    if stored is not None and stored.outcome.complete:
        return stored
    check(request.method)
    ended, last_words = _run(request, tell)
    stored = read(request.folder, RESULT_TYPES[request.method], request.trials)
    if stored is not None and (ended == 0 or not stored.outcome.complete):
        return stored
    raise AnalysisError(
        f"{NAMES[request.method]} {_failure_reason(request, ended, last_words)}; nothing of the study is lost"
    )


def _run(request: AnalysisRequest, tell: Tell) -> tuple[int | None, str]:
    """How the process ended, None if its time was over, and the last line that it said."""
    over = threading.Event()
    with tempfile.TemporaryFile() as errors:
        with child_process.start(
            ["-m", _WORKER, str(request.folder), request.method],
            stdout=subprocess.PIPE,
            stderr=errors,
            own_session=False,  # a terminal that closes ends it with this process
        ) as process:
            timer = threading.Timer(request.limit_seconds, _give_up, (process, over))
            timer.start()
            try:
                _listen(process, tell)
            finally:
                timer.cancel()
                child_process.kill(process)
        return None if over.is_set() else process.returncode, _last_line(errors)


def _give_up(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    over.set()
    child_process.kill(process)


def _listen(process: subprocess.Popen[bytes], tell: Tell) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            message = json.loads(line)
            tell(float(message["part"]), str(message["doing"]))
        except (ValueError, TypeError, KeyError):
            continue  # a library's own words
    process.wait()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _failure_reason(request: AnalysisRequest, ended: int | None, last_words: str) -> str:
    if ended is None:
        return f"had nothing yet after {request.limit_seconds:g} s; give it longer with --limit SECONDS"
    if ended < 0:
        return f"was killed by signal {-ended}; ask again"
    return f"failed: {last_words or f'exit code {ended}'}"
