"""A study whose space grew beyond what was declared goes on as another one, linked, with all its trials."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from engine.config.errors import InputError, several
from engine.run import run_folder
from tuning.controllers import status
from tuning.space.knobs import Knob
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.storage import effective_config, journal, study_folder
from tuning.storage.journal import TURN, FileLock, JournalReader
from tuning.storage.state import Line, StudyState, Successor

#: How often the chain of a study is followed before something must be wrong.
LONGEST_CHAIN = 1_000
#: Makes the study that goes on, from the folder and the state of the one before.
Begin = Callable[[Path, StudyFile, StudyState], None]


def announce(arguments: dict[str, Any], state: StudyState, file: StudyFile) -> tuple[str, dict[str, Any]]:
    """The answer to a command that widens a space beyond what was declared: what the journal keeps of the successor.

    Raises:
        InputError: a run refuses a value, or no legal point has it.
    """
    space = {knob.key: knob.document() for knob in file.knobs}
    added = {key: _widen_knob(file, key, value) for key, value in arguments.items()}
    space |= {key: knob.document() for key, knob in added.items()}
    name = _next_name(state, file)
    after = successor_file(file, Successor(name, space))
    for key, value in arguments.items():
        _check_reachable(after, key, value)
    limits: dict[str, Any] = {}
    for key, now in effective_config.build_mask(state, file.search_space).by_key.items():
        if key in added:  # what was asked for is open, and what was narrowed away stays so
            knob = Knob(key, effective_config.parse_values(file.search_space, key, arguments[key]))
            open_now = effective_config.union(added[key], now, knob)
            limits[key] = open_now and open_now.document()
    words = f"was not declared: the study goes on as {name}, with all its trials"
    return words, {"changes": {"limits": limits, "successor": {"name": name, "space": space}}}


def successor_file(file: StudyFile, successor: Successor) -> StudyFile:
    """The file of the study that goes on."""
    return study_file.parse(file.resolve() | asdict(successor))


def follow(reader: JournalReader, file: StudyFile, begin: Begin) -> tuple[JournalReader, StudyFile]:
    """Where a study goes on by now, and the file to go on with; the study itself if it was never widened. ``begin``
    makes what is not there yet.

    Raises:
        InputError: a folder cannot be written.
    """
    for _ in range(LONGEST_CHAIN):
        state, folder = reader.look(), reader.path.parent
        if state.successor is None:
            break
        file = successor_file(file, state.successor)
        begin(folder, file, state)
        reader = JournalReader(folder.parent / file.name / study_folder.JOURNAL)
    return reader, file


def begin(folder: Path, file: StudyFile, state: StudyState) -> None:
    """Make the successor's folder, with a journal that holds every trial and command so far, unless it is there.

    Raises:
        InputError: the folder cannot be written.
    """
    with FileLock(folder / TURN):  # of several controllers, one
        _begin(folder, folder.parent / file.name, file, state)


def _begin(folder: Path, place: Path, file: StudyFile, state: StudyState) -> None:
    if not (place / study_folder.JOURNAL).exists():
        records = lines(folder, file, state)
        try:
            (place / run_folder.COMMANDS).mkdir(parents=True, exist_ok=True)
            _write(place / study_folder.JOURNAL, records)
        except OSError as error:
            remedy = f"cannot be written ({error.strerror}); free space or give another --home"
            raise InputError("home", str(place), remedy) from None
        status.write(place / study_folder.STUDY, file.resolve())
    hand_over(folder, place, state)


def lines(folder: Path, file: StudyFile, state: StudyState) -> list[Line]:
    """What the journal of the study that goes on begins with, from that in the folder of the one before."""
    before, _ = journal.read(folder / study_folder.JOURNAL)
    base, keys = file.search_space.base_values, [knob.key for knob in file.knobs]
    known_keys = set((state.file or {}).get("space") or {})
    added_values = {key: base[key] for key in keys if key not in known_keys}
    now = time.time()
    first = {"at_unix": now, "kind": "continues", "studies": [*state.continues, folder.name]}
    # Values that are new may be worth a trial though no other one was.
    retained = [line for line in before if line["kind"] != "continues" and "enough" not in line]
    return [first, *(_taken_over(line, added_values, file) for line in retained)]


def _taken_over(line: Line, added_values: dict[str, Any], file: StudyFile) -> Line:
    """A line of the study before: points name the knobs that are new, and nobody succeeds himself."""
    if line["kind"] == "study":
        wider = {key: value for key, value in file.resolve().items() if key in ("name", "space")}
        return line | {"file": line["file"] | wider, "fingerprint": file.fingerprint()}
    if line["kind"] == "proposal":
        return line | {"config": added_values | line["config"]}
    changes = line.get("changes") or {}
    if "successor" in changes:
        remaining = {key: value for key, value in changes.items() if key != "successor"}
        return line | {"changes": remaining}
    return line


def _write(path: Path, lines: list[Line]) -> None:
    """All at once: a journal is whole, or is not there."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("wb") as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def hand_over(folder: Path, place: Path, state: StudyState) -> None:
    """Commands that nobody answered yet are the successor's."""
    old, new = folder / run_folder.COMMANDS, place / run_folder.COMMANDS
    for path in sorted(old.glob("*.json")) if old.is_dir() else []:
        if path.stem not in state.answers:
            path.replace(new / path.name)


def _next_name(state: StudyState, file: StudyFile) -> str:
    stem = re.sub(r"\.\d+$", "", file.name) if state.continues else file.name
    return f"{stem}.{len(state.continues) + 2}"


def _widen_knob(file: StudyFile, key: str, requested: Any) -> Knob:
    """A knob with what was declared and what is asked for beside it."""
    values = effective_config.parse_values(file.search_space, key, requested)
    knob = file.search_space.by_key.get(key)
    if knob is not None and knob.is_range:
        low, high = knob.grid()[0], knob.grid()[-1]
        ends = {"low": min(low, *values), "high": max(high, *values)}
        document: Any = ends | ({"log": True} if knob.log else {})
    elif effective_config.is_range(requested):
        document = {"low": values[0], "high": values[-1]}
    else:
        document = list(dict.fromkeys((*(knob.choices if knob else ()), *values)))
    tree = {"name": file.name, "ranks": file.ranks, "base": file.base}
    space = {knob.key: knob.document() for knob in file.knobs} | {key: document}
    return study_file.parse(tree | {"space": space}).search_space.by_key[key]


def _check_reachable(file: StudyFile, key: str, values: Any) -> None:
    """Raise unless each new value stands in some legal point."""
    space = file.search_space
    for value in effective_config.parse_values(space, key, values):
        narrowed = effective_config.narrow_space(space, effective_config.Mask((Knob(key, (value,)),)))
        if narrowed.random_point(Random(0), ()) is None:
            raise InputError(
                key,
                value,
                f"no legal point of {several(file.ranks, 'ranks')} has it; the space stays as it is",
            )
