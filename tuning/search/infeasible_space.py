"""Whether anything of a space runs at all, where nothing did so far: by predictions, else by the trials alone. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from engine.run.outcome import GOOD
from tuning.search.acquisition import FORETOLD, MOST_FAILURES
from tuning.storage.state import StudyState, Trial

#: How the two kinds of news begin.
CERTAIN, SO_FAR = "nothing runs", "nothing ran"
_ONWARDS = "; to search all the same: prior: none in the study file"


class Nothing(NamedTuple):
    """What a study says of a space in which nothing ran, and whether it ``ends`` the search."""

    words: str
    ends: bool


def failed(state: StudyState) -> list[Trial]:
    """Trials of the search whose configuration failed, if none came to its end; else nothing."""
    searched = [trial for trial in state.trials if trial.confirms is None]
    if any(_ran(trial) for trial in searched):
        return []
    return [trial for trial in searched if any(violation > 0 for violation in trial.constraints.values())]


def _ran(trial: Trial) -> bool:
    return trial.value is not None or trial.outcome in GOOD


def foreseen(words: str) -> Nothing:
    """What :func:`tuning.search.acquisition.gives_up` says."""
    ends = words.startswith(CERTAIN)
    return Nothing(words + (_ONWARDS if ends else ""), ends)


def seen(state: StudyState) -> Nothing | None:
    """Without predictions: after twelve failures, and none of them ends the search."""
    found = failed(state)
    if len(found) < MOST_FAILURES:
        return None
    counts = Counter(str(trial.outcome) for trial in found)
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    last = next((f"; the last: {trial.reason}" for trial in reversed(found) if trial.reason), "")
    return Nothing(f"{SO_FAR} in {len(found)} trials: {words}{last}", ends=False)


def noted(state: StudyState) -> str:
    """What was said last; what the trials alone say is told of all that ended since, too."""
    said = [note for note in state.notes if note.startswith((CERTAIN, SO_FAR))]
    if not said:
        return ""
    now = seen(state)
    return now.words if now and said[-1].startswith(SO_FAR) and FORETOLD not in said[-1] else said[-1]


def ended(state: StudyState) -> bool:
    """Whether the search ended because nothing runs."""
    certain = any(note.startswith(CERTAIN) for note in state.notes)
    return certain and not any(map(_ran, state.trials))
