"""What people say of what is in a home: a note and tags of a run or a study, and places of the page by a name.

A note and tags lie in the folder of their run or study and go where it goes; the places lie in the home.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.run.run_folder import check_writable, read_json, write_json

FILE = "remarks.json"
SAVED_VIEWS = "views.json"
LONGEST_NOTE = 4_000
LONGEST_TAG = 40
MOST_TAGS = 20
MOST_VIEWS = 200


@dataclass(frozen=True, slots=True)
class Annotations:
    """A note in plain text, empty where there is none, and tags in alphabetical order."""

    note: str = ""
    tags: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"note": self.note, "tags": list(self.tags)}


@dataclass(frozen=True, slots=True)
class SavedView:
    """A place of the page: the page's title, and what its address says after the question mark."""

    name: str
    page: str
    query: dict[str, str]
    saved_unix: float


def annotations_of(folder: Path) -> Annotations:
    """What is said of a run or a study; nothing where the file is missing or damaged."""
    document = read_json(folder / FILE) or {}
    note, tags = document.get("note"), document.get("tags")
    texts = (tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
    return Annotations(note if isinstance(note, str) else "", tuple(sorted(texts)))


def change_annotations(
    folder: Path, note: str | None = None, add: Iterable[str] = (), remove: Iterable[str] = ()
) -> Annotations:
    """Replace the note of a run or a study (None leaves it), add tags and take others away; what stands there then.

    Raises:
        InputError: a tag or the note is too long or not plain text, there are too many tags, a tag to remove is not
            there, or the folder cannot be written.
    """
    additions, removals = _tags(add), set(remove)
    with _changing(folder):
        before = annotations_of(folder)
        if missing := sorted(removals - set(before.tags)):
            raise InputError(
                "--untag", missing[0], f"is no tag of {folder.name}; it has {_join_tags(before.tags)}"
            )
        tags = tuple(sorted((set(before.tags) - removals) | additions))
        if len(tags) > MOST_TAGS:
            raise InputError(
                "--tag", ", ".join(sorted(additions)), f"a run or study has at most {MOST_TAGS} tags"
            )
        after = Annotations(before.note if note is None else _note(note), tags)
        if after != before:
            write_json(folder / FILE, after.as_dict())
    return after


def saved_views(home: Path) -> list[SavedView]:
    """Places that were given a name, in alphabetical order."""
    rows = (read_json(home / SAVED_VIEWS) or {}).get("views")
    views = [view for row in rows if (view := _view(row))] if isinstance(rows, list) else []
    return sorted(views, key=lambda view: view.name.lower())


def save_view(home: Path, name: str, page: str, query: Mapping[str, str]) -> SavedView:
    """Give a place a name; one that has this name already is replaced.

    Raises:
        InputError: the name is empty, too long or not plain text, there are too many, or the home cannot be written.
    """
    view = SavedView(_word("name", name), page, dict(query), time.time())
    with _changing(home):
        others = [saved for saved in saved_views(home) if saved.name != view.name]
        if len(others) >= MOST_VIEWS:
            raise InputError("name", name, f"a home keeps at most {MOST_VIEWS} views; forget one first")
        _write_views(home, [*others, view])
    return view


def forget_view(home: Path, name: str) -> None:
    """Take a name away again; what it named stays. Nothing happens where there is none."""
    with _changing(home):
        _write_views(home, [view for view in saved_views(home) if view.name != name])


def _write_views(home: Path, views: list[SavedView]) -> None:
    write_json(home / SAVED_VIEWS, {"views": [asdict(view) for view in views]})


def _view(row: Any) -> SavedView | None:
    """A row of the file; None where somebody broke it."""
    if not isinstance(row, dict):
        return None
    name, page, query = row.get("name"), row.get("page"), row.get("query")
    if not isinstance(name, str) or not isinstance(page, str) or not isinstance(query, dict):
        return None
    saved = row.get("saved_unix")
    saved_unix = float(saved) if isinstance(saved, int | float) else 0.0
    return SavedView(name, page, {str(key): str(value) for key, value in query.items()}, saved_unix)


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Only one process changes a folder's file at a time: a tag added elsewhere meanwhile is not lost."""
    with check_writable(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _tags(words: Iterable[str]) -> set[str]:
    tags = {_word("--tag", tag) for tag in words}
    for tag in tags:
        if "," in tag:
            raise InputError("--tag", tag, "a tag has no comma; give --tag once for each")
    return tags


def _word(field: str, text: str) -> str:
    word = " ".join(text.split())
    if not word or len(word) > LONGEST_TAG or not word.isprintable():
        raise InputError(field, text, f"must be 1 to {LONGEST_TAG} printable characters")
    return word


def _note(text: str) -> str:
    note = text.strip()
    if len(note) > LONGEST_NOTE:
        raise InputError("note", f"{note[:20]}...", f"has {len(note):,} characters; at most {LONGEST_NOTE:,}")
    if any(not (character.isprintable() or character in "\n\t") for character in note):
        raise InputError("note", note[:20], "holds control characters; give plain text")
    return note


def _join_tags(tags: Iterable[str]) -> str:
    return ", ".join(tags) or "none"
