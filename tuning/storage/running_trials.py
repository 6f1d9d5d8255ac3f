"""The trials of a study that run now, and who runs them, for people and ``--json``. Pure."""

from __future__ import annotations

from typing import Any

from tuning.spec.study_file import StudyFile
from tuning.storage.controllers import Member, same
from tuning.storage.state import StudyState, Trial

Document = dict[str, Any]


def running(state: StudyState, file: StudyFile) -> list[Document]:
    """Every trial without an end, oldest first."""
    space = file.search_space
    return [
        {
            "trial": trial.number,
            "run": trial.run,
            "source": trial.source,
            "confirms": trial.confirms,
            "label": space.remember("label", trial.config, space.label),
            "began_unix": trial.proposed_unix,
            "controller": controller(trial),
        }
        for trial in state.under_way
    ]


def controller(trial: Trial) -> Document | None:
    """Who runs or ran a trial; the host is not known of studies that began before it was noted."""
    return {"pid": trial.lease["pid"], "host": trial.lease.get("host")} if trial.lease else None


def members(living: list[Document], state: StudyState) -> list[Document]:
    """The controllers that live, each with the trial that it runs."""
    return [_member(member, state) for member in living]


def _member(member: Member, state: StudyState) -> Document:
    at = next((trial for trial in state.under_way if trial.lease and same(trial.lease, member)), None)
    known = {name: member.get(name) for name in ("pid", "start_time", "host", "since_unix", "here")}
    return known | {"trial": at.number if at else None, "run": at.run if at else None}
