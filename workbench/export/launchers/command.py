"""Export of a trial of a command: itself with that trial's values, and the JSON files that they stand in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from engine.config.errors import InputError
from tuning.spec import study_file
from tuning.spec.trainers.invocation import ARGUMENTS_FILE, FOLDER, Invocation
from tuning.storage.study_folder import STUDIES, STUDY_GIVEN
from workbench.analysis.studies import StudyDocument
from workbench.export.bundle import Bundle
from workbench.export.provenance import provenance, source
from workbench.home.runs import RunView
from workbench.text.output import dumps

_SCRIPT = """\
#!/usr/bin/env bash
# {title} with the values of {run}, found by study {study}: {values}
# Written to start where the study started: {directory}
set -euo pipefail
here="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
cd -- {directory}
exec {command} "$@"
"""
#: Stands for the export's folder in a word until the words are quoted.
_HERE = "\0here/"


def render(view: RunView, study: StudyDocument | None = None) -> Bundle:
    """The files of a trial's export; nothing is written.

    Raises:
        InputError: the run is no trial of a command, or its study is gone.
    """
    name = view.labels.get("study") or ""
    file = _study(view, name)
    assert file.command is not None
    values = view.config().trainer
    invocation = file.command.with_values(values)
    files = {Path(word).name: dumps(dict(tree)) + "\n" for word, tree in invocation.files.items()}
    if invocation.arguments:
        files[ARGUMENTS_FILE] = json.dumps(dict(invocation.arguments), indent=2) + "\n"
    settings = " ".join(f"{key}={value}" for key, value in values.items())
    words = {
        "title": file.command.kind.title, "run": view.id, "study": name, "values": " ".join(settings.split()),
        "directory": shlex.quote(file.command.directory), "command": _command(invocation),
    }  # fmt: skip
    files |= {
        "run.sh": _SCRIPT.format(**words),
        "provenance.json": dumps(provenance(source(view, study)).as_dict()) + "\n",
    }
    return Bundle(f"{name}-{view.id}", files, frozenset({"run.sh"}))


def _study(view: RunView, name: str) -> study_file.StudyFile:
    given_file = view.folder.parent / STUDIES / name / STUDY_GIVEN
    remedy = "is for trials of a study of a command (workbench tune --command); give torchrun, or trainer"
    if not name or not given_file.is_file():
        raise InputError("--to", "command", remedy)
    file = study_file.load(given_file)
    if file.command is None:
        raise InputError("--to", "command", remedy)
    return file


def _command(invocation: Invocation) -> str:
    """Its words for a shell; what stands in a file of the export names it there."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in invocation.variables.items()]
    names_there = {word: f"{_HERE}{Path(word).name}" for word in invocation.files}
    words = [_word(word) for word in invocation.renamed_words(names_there)]
    return " ".join([*(["env"] if variables else []), *variables, *words])


def _word(word: str) -> str:
    """Quoted, but for the folder of the export where it stands in a word."""
    before, separator, after = word.replace(f"{FOLDER}/", _HERE).partition(_HERE)
    if not separator:
        return shlex.quote(word)
    return f'{shlex.quote(before) if before else ""}"$here"/{shlex.quote(after)}'
