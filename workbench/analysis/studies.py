"""One study folder, read: the result as its journal has it by now, and the run that it recommends.

Studies that a page or a waiting command looks at again and again: read as they grow, worked out once for all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from engine.config.errors import InputError
from tuning.storage import study_folder
from tuning.storage.study_folder import StudyReader, StudyView
from workbench.analysis import why
from workbench.home.resolve import Target

if TYPE_CHECKING:
    from tuning.report.study_result import Entry, StudyResult


def document(folder: Path) -> dict[str, Any]:
    """The JSON of a study, as ``tune`` and ``show`` print it.

    Raises:
        InputError: there is no study in this folder.
    """
    return of_view(StudyReader(folder).view())


def of_view(view: StudyView) -> dict[str, Any]:
    """As :func:`document`, of a study that was read already. The journal is the truth; result.json may be older."""
    result = result_of(view)
    if view.file is not None:
        found = result.as_dict() | {"importance": (view.result or {}).get("importance")}
    else:
        found = _EMPTY | {"study": view.name} | (view.result or {}) | {"state": view.state}
    members = view.status.controllers if view.alive else []
    found[study_folder.LAG] = view.status.optuna_lag
    return found | {"controllers": members, "why": why.of_study(result, view.folder.parent.parent)}


def result_of(view: StudyView) -> StudyResult:
    """What a study's journal comes to; of a study whose file is gone, the trials that its result.json names.

    Nothing else is read of that file: earlier versions wrote some of its parts in another form.
    """
    from tuning.report.result import result
    from tuning.report.study_result import StudyResult

    if view.file is not None:
        return result(view.journal, view.file, view.state)
    written = view.result or {}
    return StudyResult.from_dict({key: written[key] for key in _READ_OF_OLD if key in written})


_READ_OF_OLD = ("objective", "target_loss", "best", "baseline", "recommended", "runner_up")
_EMPTY: dict[str, Any] = {"objective": None, "best": None, "baseline": None, "gain": None, "trials": []}


def best_run(home: Path, target: Target) -> Target:
    """A study's best run; a run is itself.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        return target
    return _run_of(home, target, result_of(StudyReader(target.folder).view()).best, "best")


def recommended_run(home: Path, target: Target) -> tuple[Target, str]:
    """The run that a study recommends, which on a tie need not be the fastest, and that in words; a run is itself.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        return target, ""
    result = result_of(StudyReader(target.folder).view())
    best, recommended = result.best, result.recommended
    run = _run_of(home, target, recommended or best, "recommended")
    if recommended is None or best is None or recommended.run == best.run:
        return run, f"its best run {run.id}"
    return run, f"the run {run.id} that it recommends ({recommended.why}), not its fastest, {best.run}"


def _run_of(home: Path, target: Target, entry: Entry | None, which: str) -> Target:
    run = entry.run if entry else None
    if not run:
        raise InputError("id", target.id, "this study has no measured trial yet; wait for one, or give a run")
    if not (home / run).is_dir():
        raise InputError("id", target.id, f"the folder of its {which} run {run} is gone from {home}")
    return Target("run", run, home / run)


#: Studies followed at a time: one of 10,000 trials takes some 300 MB.
FOLLOWED = 4
Result = TypeVar("Result")


class Seen(NamedTuple):
    """A look at a study, and the document that ``show STUDY --json`` would print now."""

    view: StudyView
    document: Mapping[str, Any]


class FollowedStudy:
    """One study. What is worked out of its state is kept beside it, so only one thread does that at a time."""

    def __init__(self, folder: Path) -> None:
        self._reader = StudyReader(folder)
        self._lock = threading.RLock()
        self._seen: Seen | None = None
        self._more: dict[str, tuple[object, Any]] = {}

    def seen(self) -> Seen:
        """The study now; the very same document as long as nothing of it changed.

        Raises:
            InputError: there is no such study.
        """
        with self._lock:
            view, before = self._reader.view(), self._seen
            if before is None or _stands_on(before.view) != _stands_on(view):
                self._seen = Seen(view, of_view(view))
            else:
                self._seen = Seen(view, before.document)
            return self._seen

    def more(self, what: str, signature: object, make: Callable[[], Result]) -> Result:
        """Something else that is worked out of the study, once for each signature; a document is its own."""
        with self._lock:
            known = self._more.get(what)
            if known is None or not _is_same(known[0], signature):
                known = self._more[what] = (signature, make())
            result: Result = known[1]
            return result


def _is_same(before: object, now: object) -> bool:
    return before is now or (isinstance(now, tuple) and before == now)


def _stands_on(view: StudyView) -> tuple[object, ...]:
    """What a document is made of; objects stay the same ones until they change."""
    controllers = view.status.controllers if view.alive else None
    return view.state, id(view.journal), id(view.result), controllers


class FollowedStudies:
    """The few studies that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Path, FollowedStudy] = OrderedDict()

    def study(self, folder: Path) -> FollowedStudy:
        """The study of a folder."""
        with self._lock:
            found = self._known.setdefault(folder, FollowedStudy(folder))
            self._known.move_to_end(folder)
            while len(self._known) > FOLLOWED:
                self._known.popitem(last=False)
            return found
