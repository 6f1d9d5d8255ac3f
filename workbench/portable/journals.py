"""A journal as bytes: its whole lines, and the same ones under other names of the study. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.errors import InputError
from tuning.spec import study_file
from tuning.storage.state import Line

#: Name before -> name from now on, of a study and all that it continues.
Names = Mapping[str, str]


def whole_lines(data: bytes) -> bytes:
    """A journal without the line that is being written."""
    return data[: data.rfind(b"\n") + 1]


def lines(data: bytes) -> Iterator[Line]:
    """Every line that can be read."""
    for piece in data.split(b"\n"):
        line = _line(piece)
        if line is not None:
            yield line


def renamed(data: bytes, names: Names) -> bytes:
    """The journal as it would be had the study had its new name; what cannot be read stays as it is."""
    return b"\n".join(_renamed(piece, names) for piece in data.split(b"\n"))


def _line(piece: bytes) -> Line | None:
    try:
        line = json.loads(piece)
    except ValueError:
        return None
    known = isinstance(line, dict) and isinstance(line.get("kind"), str) and "at_unix" in line
    return line if known else None


def _renamed(piece: bytes, names: Names) -> bytes:
    line = _line(piece)
    change = _CHANGES.get(line["kind"]) if line else None
    if line is None or change is None:
        return piece
    try:
        return json.dumps(line | change(line, names)).encode()
    except (KeyError, TypeError, AttributeError):
        return piece


def _study(line: Line, names: Names) -> Line:
    file = line["file"] | {"name": names.get(line["file"]["name"], line["file"]["name"])}
    try:
        return {"file": file, "fingerprint": study_file.parse(file).fingerprint()}
    except InputError:  # of a newer version: only that one can tell
        return {"file": file}


def _continues(line: Line, names: Names) -> Line:
    return {"studies": [names.get(each, each) for each in line["studies"]]}


def _command(line: Line, names: Names) -> Line:
    changes: dict[str, Any] = line.get("changes") or {}
    successor = changes.get("successor")
    if not successor:
        return {}
    old = successor["name"]
    new = names.get(old, old)
    after = changes | {"successor": successor | {"name": new}}
    return {"changes": after, "reason": str(line["reason"]).replace(old, new)}


_CHANGES = {"study": _study, "continues": _continues, "command": _command}
