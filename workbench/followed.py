"""Studies that a page or a waiting command looks at again and again: read as they grow, worked out once for all."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tuning.storage.study_folder import StudyReader, StudyView
from workbench import studies

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
                self._seen = Seen(view, studies.of_view(view))
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
    controllers = view.status.get("controllers") if view.alive else None
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
