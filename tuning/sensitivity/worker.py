"""The process that works out one method over a study's trials: lines of progress on stdout, the outcome in its folder.

``python -m tuning.sensitivity.worker FOLDER METHOD``; :mod:`tuning.sensitivity.job` starts it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from tuning.sensitivity import data, job
from tuning.sensitivity.job import SENSITIVITY_METHODS
from tuning.sensitivity.outcomes import Method
from tuning.spec.study_file import StudyFile
from tuning.storage import study_folder
from tuning.storage.state import StudyState


def work(folder: Path, method: Method) -> None:
    """Work it out from the journal as it stands, and keep it."""
    view = study_folder.load_study(folder)
    if view.file is None:
        raise SystemExit("the study's file cannot be read by this version")
    trials = data.ended_trials(view.journal)
    _METHODS[method](folder, trials, view.journal, view.file)


def _fanova(folder: Path, trials: int, state: StudyState, file: StudyFile) -> None:
    from tuning.sensitivity.models import TREES, fanova

    tell(0.0, f"0 of {TREES} trees")
    for partial_result in fanova(state, file.search_space):
        job.write(folder, trials, partial_result)
        grown = partial_result.trees or TREES
        tell(grown / TREES, f"{grown} of {TREES} trees")


def _shap(folder: Path, trials: int, state: StudyState, file: StudyFile) -> None:
    from tuning.sensitivity.models import explain_trials

    tell(0.0, "starting")
    job.write(folder, trials, explain_trials(state, file, tell))
    tell(1.0, "done")


def tell(part: float, doing: str) -> None:
    """One line of progress; nobody listens any more when the parent is gone, and then this ends too."""
    print(json.dumps({"part": part, "doing": doing}), flush=True)


_METHODS = {"fanova": _fanova, "shap": _shap}


def main() -> None:
    """Of the command line's two arguments."""
    folder, method = Path(sys.argv[1]), sys.argv[2]
    if method not in SENSITIVITY_METHODS:
        raise SystemExit(f"{method!r} is not one of {', '.join(SENSITIVITY_METHODS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries about each other; nobody reads them here
        work(folder, method)


if __name__ == "__main__":
    main()
