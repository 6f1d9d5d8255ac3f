"""One study folder, read: the result as its journal has it by now, and the run that it recommends.

Studies that a page or a waiting command looks at again and again: read as they grow, worked out once for all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from engine.config.errors import InputError
from tuning.storage import study_folder
from tuning.storage.controllers import ControllerRow
from tuning.storage.study_folder import StudyReader, StudyView
from workbench.analysis import automatic_choices, command_report, live_report, winner_explanation
from workbench.analysis.automatic_choices import AutomaticChoice
from workbench.analysis.command_report import CommandReport
from workbench.analysis.live_report import LiveReport
from workbench.analysis.winner_explanation import WinnerExplanation
from workbench.home import runs
from workbench.home.resolve import Target
from workbench.home.runs import RunView

if TYPE_CHECKING:
    from tuning.report.study_result import Entry, StudyResult


@dataclass(frozen=True, slots=True)
class StudyDocument:
    """A study's result and what it does not say: who works on it now, why its winner wins, and what was picked for it.

    ``controllers`` is None where they are not told, and its key is left out. ``written`` is result.json as it stands,
    of a study whose file this version refuses: all of its keys are passed on. ``live`` tells of the run that it tunes,
    ``command`` of the command.
    """

    result: StudyResult
    controllers: Sequence[ControllerRow] | None
    why: WinnerExplanation | None
    written: Mapping[str, Any] | None = None
    live: LiveReport | None = None
    command: CommandReport | None = None
    picks: Sequence[AutomaticChoice] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON of a study, as ``tune`` and ``show`` print it."""
        plain = self.result.as_dict() if self.written is None else dict(self.written)
        members = {} if self.controllers is None else {"controllers": list(map(asdict, self.controllers))}
        live = {} if self.live is None else {"live": self.live.as_dict()}
        command = {} if self.command is None else {"command": self.command.as_dict()}
        picks = {"picks": [pick.as_dict() for pick in self.picks]} if self.picks else {}
        return plain | members | {"why": self.why.as_dict() if self.why else None} | picks | live | command


def document(folder: Path) -> StudyDocument:
    """A study as it stands now.

    Raises:
        InputError: there is no study in this folder.
    """
    return view_document(StudyReader(folder).view())


def view_document(view: StudyView) -> StudyDocument:
    """As :func:`document`, of a study that was read already. The journal is the truth; result.json may be older."""
    from tuning.report.result import result as make_result
    from tuning.report.study_result import StudyResult
    from tuning.sensitivity.outcomes import importance_of

    lag = view.status.optuna_lag
    stored, stored_document = view.result or {}, None
    if view.file is not None:
        result = replace(
            make_result(view.journal, view.file, view.state), importance=importance_of(stored), optuna_lag=lag
        )
    else:
        stored_document = (
            _EMPTY | {"study": view.name} | stored | {"state": view.state, study_folder.LAG: lag}
        )
        result = StudyResult.from_dict(stored_document)
    members = view.status.controllers if view.alive else []
    home = view.folder.parent.parent
    return StudyDocument(
        result,
        members,
        winner_explanation.explain_winner(result, home),
        stored_document,
        live_report.report_live_study(view.folder, result),
        command_report.report_command(view.file, result),
        automatic_choices.explain_choices(result, view.file, home),
    )


_EMPTY: dict[str, Any] = {"objective": None, "best": None, "baseline": None, "gain": None, "trials": []}


def best_run(home: Path, target: Target) -> Target:
    """A study's best run; a run is itself.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        return target
    return _run_of(home, target, document(target.folder).result.best, "best")


class RunToExport(NamedTuple):
    """A run, its study if that can still be read, and which run of a study it is, in words."""

    view: RunView
    study: StudyDocument | None
    description: str


def run_to_export(home: Path, target: Target, study: StudyDocument | None = None) -> RunToExport:
    """A run, or the one that a study recommends, which on a tie need not be the fastest. ``study`` is the document of
    that study, if it is known already.

    Raises:
        InputError: the study has measured nothing, or the run's folder is gone.
    """
    if target.kind == "run":
        view = runs.load(target.folder)
        return RunToExport(view, _study_of(home, view), "")
    study = study or document(target.folder)
    best, recommended = study.result.best, study.result.recommended
    run = _run_of(home, target, recommended or best, "recommended")
    description = f"its best run {run.id}"
    if best and recommended and recommended.run != best.run:
        description = f"the run {run.id} that it recommends ({recommended.why}), not its fastest, {best.run}"
    view = runs.load(run.folder)
    study_of_run = study if view.labels.get("study") == target.id else _study_of(home, view)
    return RunToExport(view, study_of_run, description)


def _study_of(home: Path, view: RunView) -> StudyDocument | None:
    name = view.labels.get("study")
    try:
        return document(home / study_folder.STUDIES / name) if name else None
    except InputError:
        return None


def _run_of(home: Path, target: Target, entry: Entry | None, role: str) -> Target:
    if entry is None or not entry.run:
        raise InputError("id", target.id, "this study has no measured trial yet; wait for one, or give a run")
    if not (home / entry.run).is_dir():
        raise InputError("id", target.id, f"the folder of its {role} run {entry.run} is gone from {home}")
    return Target("run", entry.run, home / entry.run)


#: Studies followed at a time: one of 10,000 trials takes some 300 MB.
FOLLOWED = 4
Result = TypeVar("Result")


class StudySnapshot(NamedTuple):
    """A study's folder as it was read, and the document that ``show STUDY --json`` would print then."""

    view: StudyView
    document: StudyDocument

    @property
    def result(self) -> StudyResult:
        """The result in the document."""
        return self.document.result

    def acts(self, key: str, config: Mapping[str, Any]) -> bool:
        """Whether a knob changes anything at a point: no ratio without top-k, no schedule without pipeline."""
        file = self.view.file
        return key in config and (file is None or file.search_space.is_active(key, dict(config)))


class FollowedStudy:
    """One study. What is worked out of its state is kept beside it, so only one thread does that at a time."""

    def __init__(self, folder: Path) -> None:
        self._reader = StudyReader(folder)
        self._lock = threading.RLock()
        self._latest: StudySnapshot | None = None
        self._more: dict[str, tuple[object, Any]] = {}

    def snapshot(self) -> StudySnapshot:
        """The study now; the very same document as long as nothing of it changed.

        Raises:
            InputError: there is no such study.
        """
        with self._lock:
            view, before = self._reader.view(), self._latest
            same = before is not None and _stands_on(before.view) == _stands_on(view)
            self._latest = StudySnapshot(view, before.document if before and same else view_document(view))
            return self._latest

    def more(self, question: str, signature: object, compute: Callable[[], Result]) -> Result:
        """Something else that is worked out of the study, once for each signature; a document is its own."""
        with self._lock:
            answer = self._more.get(question)
            if answer is None or not _is_same(answer[0], signature):
                answer = self._more[question] = (signature, compute())
            result: Result = answer[1]
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
            study = self._known.setdefault(folder, FollowedStudy(folder))
            self._known.move_to_end(folder)
            while len(self._known) > FOLLOWED:
                self._known.popitem(last=False)
            return study
