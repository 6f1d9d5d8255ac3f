"""What a study's file says of itself: its format, what is in it with checksums, and what was left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from engine.config.errors import InputError
from engine.run import run_folder
from tuning.spec.study_file import NAME as STUDY_NAME
from tuning.storage import study_folder
from workbench.home import notes

FORMAT = "workbench study"
VERSION = 1
MANIFEST = "manifest.json"
STUDIES, RUNS = "studies", "runs"
#: A study's documents, in the order in which they are read: none of them tells more than the journal, which is last.
STUDY_FILES = (
    study_folder.STUDY_GIVEN,
    study_folder.STUDY,
    study_folder.RESULT,
    run_folder.STATUS,
    notes.FILE,
    study_folder.JOURNAL,
)
RUN_FILES = (
    run_folder.CONFIG,
    run_folder.STARTED,
    run_folder.STATUS,
    run_folder.SUMMARY,
    notes.FILE,
)
RUN_FOLDERS = (run_folder.RECORDS, run_folder.LOGS)
_RUN_NAME = re.compile(r"[0-9][A-Za-z0-9_-]*")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+=@-]*")


@dataclass(frozen=True, slots=True)
class Member:
    """A file's length and checksum."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``studies`` are all names that the study has had, the oldest first. ``machine`` is the fingerprint of where its
    trials ran (None if that is not known), ``exported_on`` of where the file was made.
    """

    study: str
    studies: tuple[str, ...]
    workbench: str
    exported_unix: float
    machine: str | None
    exported_on: str
    trials: int
    runs: int
    records: bool
    left_out: tuple[str, ...]
    members: dict[str, Member]
    version: int = VERSION

    def document(self) -> dict[str, Any]:
        """For JSON."""
        fields = {name: getattr(self, name) for name in Manifest.__dataclass_fields__}
        members = {
            name: {"bytes": member.bytes, "sha256": member.sha256} for name, member in self.members.items()
        }
        return {"format": FORMAT} | fields | {"members": members}


def parse_manifest(document: object, path: str) -> Manifest:
    """A manifest that was read.

    Raises:
        InputError: it is none, a newer version wrote it, or a name in it would lie outside the home folder.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise damage(path, f"its {MANIFEST} is not that of a study")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        writer = document.get("workbench", "another version")
        remedy = f"has format {version}, written by workbench {writer}; this one reads up to {VERSION}: install a newer"
        raise InputError("file", path, remedy)
    try:
        members = {
            name: Member(int(row["bytes"]), str(row["sha256"])) for name, row in document["members"].items()
        }
        fields = {name: document[name] for name in Manifest.__dataclass_fields__ if name in document}
        lists = {name: tuple(map(str, document[name])) for name in ("studies", "left_out")}
        manifest = Manifest(**fields | lists | {"members": members})
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damage(path, f"its {MANIFEST} is not complete") from None
    _check_names(manifest, path)
    return manifest


def damage(path: str, problem: str) -> InputError:
    """What is said of a file that cannot be trusted."""
    return InputError("file", path, f"{problem}; nothing was imported, export the study again")


def _check_names(manifest: Manifest, path: str) -> None:
    studies = manifest.studies
    if not studies or studies[-1] != manifest.study or not all(map(STUDY_NAME.fullmatch, studies)):
        raise damage(path, f"its {MANIFEST} names no study")
    for name in manifest.members:
        if not _is_ours(name, studies):
            raise damage(path, f"it holds {name!r}, which does not belong to a study")
    if f"{STUDIES}/{manifest.study}/{study_folder.JOURNAL}" not in manifest.members:
        raise damage(path, "it holds no journal")


def _is_ours(name: str, studies: tuple[str, ...]) -> bool:
    """Whether a member may be written; never outside the folders of this study and its runs."""
    top, _, path_inside = name.partition("/")
    folder, _, file = path_inside.partition("/")
    if top == STUDIES:
        return folder in studies and file in STUDY_FILES
    if top != RUNS or not _RUN_NAME.fullmatch(folder):
        return False
    inside = file.split("/")
    return file in RUN_FILES or (
        len(inside) > 1 and inside[0] in RUN_FOLDERS and all(map(_PART.fullmatch, inside))
    )
