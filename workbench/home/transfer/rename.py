"""A journal as bytes: its whole lines, and the same ones under other names of the study. Pure.

An unpacked study made at home here: nobody runs it, and it has the name that was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from tuning.space.yaml_loader import StrictLoader
from tuning.spec import study_file
from tuning.spec.study_file import NAME
from tuning.storage import controllers, study_folder
from tuning.storage.controllers import StudyStatus
from tuning.storage.journal import parse_line
from tuning.storage.state import Line

#: Name before -> name from now on, of a study and all that it continues.
Names = Mapping[str, str]


def whole_lines(data: bytes) -> bytes:
    """A journal without the line that is being written."""
    return data[: data.rfind(b"\n") + 1]


def lines(data: bytes) -> Iterator[Line]:
    """Every line that can be read."""
    for piece in data.split(b"\n"):
        line = parse_line(piece)
        if line is not None:
            yield line


def rename_journal(data: bytes, names: Names) -> bytes:
    """The journal as it would be had the study had its new name; what cannot be read stays as it is."""
    return b"\n".join(_rename_line(piece, names) for piece in data.split(b"\n"))


def _rename_line(piece: bytes, names: Names) -> bytes:
    line = parse_line(piece)
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
    return {"studies": [names.get(study, study) for study in line["studies"]]}


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


_LOST = RunOutcome(Ending.LOST, "it was still running elsewhere when its study was exported")
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


def names_for(studies: tuple[str, ...], new: str | None) -> dict[str, str]:
    """What each of a study's names becomes: OTHER, OTHER.2, OTHER.3 and so on; all as before without a new one.

    Raises:
        InputError: it is no name for a study.
    """
    if new is None:
        return {name: name for name in studies}
    if not NAME.fullmatch(new):
        remedy = "must begin with a letter; then letters, digits and _ . - only (it names a folder)"
        raise InputError("--name", new, remedy)
    return {old: new if not place else f"{new}.{place + 1}" for place, old in enumerate(studies)}


def settle_study(folder: Path) -> None:
    """Nobody runs it here, whoever ran it where it comes from."""
    if run_folder.read_json(folder / run_folder.STATUS) is not None:
        is_held = StudyStatus.from_folder(folder).state in controllers.HELD
        state = {"state": "interrupted"} if is_held else {}
        controllers.update_status(folder, **state, owner=None, current_run=None)


def settle_run(folder: Path) -> None:
    """A run that had not ended was lost; the empty folders of its records are made."""
    for part in (run_folder.RECORDS, run_folder.LOGS, run_folder.COMMANDS):
        (folder / part).mkdir(exist_ok=True)
    status = run_folder.read_json(folder / run_folder.STATUS)
    if status is not None and status.get("state") != "ended":
        outcome = status.get("outcome") or status.get("hang") or _LOST.as_dict()
        run_folder.write_json(folder / run_folder.STATUS, status | {"state": "ended", "outcome": outcome})


def rename_study(folder: Path, names: Names) -> None:
    """Its name wherever it is written, and that of the folder."""
    _change(folder / study_folder.STUDY, lambda tree: _rename(tree, names, "name"))
    _change(
        folder / study_folder.RESULT, lambda tree: _rename(tree, names, "study", "continued_in", "continues")
    )
    _change(
        folder / run_folder.STATUS, lambda tree: _rename(tree, names, "study", "continued_in", "continues")
    )
    journal = folder / study_folder.JOURNAL
    journal.write_bytes(rename_journal(journal.read_bytes(), names))
    study_file = folder / study_folder.STUDY_GIVEN
    if study_file.is_file():
        study_file.write_text(rename_file(study_file.read_text("utf-8"), names), "utf-8")
    folder.rename(folder.with_name(names[folder.name]))


def rename_run(folder: Path, names: Names) -> None:
    """The study that a run says it belongs to."""
    _change(
        folder / run_folder.STATUS,
        lambda tree: tree | {"labels": _rename(tree.get("labels") or {}, names, "study")},
    )


def rename_file(text: str, names: Names) -> str:
    """A study's file under its new name, with its comments where that is possible."""
    try:
        tree = yaml.load(text, StrictLoader)
    except yaml.YAMLError:
        return text
    if not isinstance(tree, dict):
        return text
    wanted = _rename(tree, names, "name")
    written = _NAME_LINE.sub(f"name: {wanted.get('name')}", text, count=1)
    try:
        if yaml.load(written, StrictLoader) == wanted:
            return written
    except yaml.YAMLError:
        pass
    return yaml.safe_dump(wanted, sort_keys=False)


def _change(path: Path, change: Any) -> None:
    document = run_folder.read_json(path)
    if document is not None:
        run_folder.write_json(path, change(document))


def _rename(tree: dict[str, Any], names: Names, *keys: str) -> dict[str, Any]:
    return tree | {key: _map_value(tree[key], names) for key in keys if key in tree}


def _map_value(value: Any, names: Names) -> Any:
    if isinstance(value, list):
        return [_map_value(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
