"""What a typed ID means: a run or a study, by name, unique prefix, or a run's last four characters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.config.errors import InputError
from tuning.storage.study_folder import every_study, latest
from workbench.home.runs import run_folders
from workbench.home.transfer import atomic_import

Kind = Literal["run", "study"]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A run or a study that exists."""

    kind: Kind
    id: str
    folder: Path


def targets(home: Path) -> list[Target]:
    """Everything that can be named: studies by name, then runs from the newest to the oldest."""
    atomic_import.finish(home)
    runs = [Target("run", folder.name, folder) for folder in run_folders(home)]
    return [Target("study", folder.name, folder) for folder in every_study(home)] + runs[::-1]


def resolve(home: Path, text: str) -> Target:
    """The one run or study that ``text`` names. Of a study that went on under another name, all names mean the last.

    Raises:
        InputError: nothing has this name, or more than one thing does.
    """
    all_targets = targets(home)
    for matches in (_exact(all_targets, text), _beginning(all_targets, text), _ending(all_targets, text)):
        matching = list(dict.fromkeys(map(_by_now, matches)))
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise InputError(
                "id", text, f"names {len(matching)} of them: {_names(matching)}; give more characters"
            )
    raise InputError("id", text, _unknown(home, all_targets))


def _by_now(target: Target) -> Target:
    if target.kind == "run":
        return target
    folder = latest(target.folder)
    return Target("study", folder.name, folder)


def _exact(candidates: list[Target], text: str) -> list[Target]:
    return [target for target in candidates if target.id == text]


def _beginning(candidates: list[Target], text: str) -> list[Target]:
    return [target for target in candidates if text and target.id.startswith(text)]


def _ending(candidates: list[Target], text: str) -> list[Target]:
    return [target for target in candidates if target.kind == "run" and target.id.rpartition("-")[2] == text]


def _names(matching: list[Target]) -> str:
    more_text = f", ... ({len(matching) - _SHOWN} more)" if len(matching) > _SHOWN else ""
    return ", ".join(target.id for target in matching[:_SHOWN]) + more_text


def _unknown(home: Path, candidates: list[Target]) -> str:
    if not candidates:
        return f"there are no runs or studies in {home}; give another --home"
    return f"no run or study begins with it; the newest are {_names(candidates)}"
