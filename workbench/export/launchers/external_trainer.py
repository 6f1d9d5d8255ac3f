"""Export for a trainer that is not this project's: its values as plain JSON, and its command that begins with them."""

from __future__ import annotations

from engine.config.errors import InputError
from engine.rank.foreign import FOLDER_VARIABLE, VALUES
from tuning.spec import study_file
from tuning.storage.study_folder import STUDIES, STUDY_GIVEN
from workbench.analysis.studies import StudyDocument
from workbench.export.bundle import Bundle
from workbench.export.provenance import provenance, source
from workbench.home.runs import RunView
from workbench.text.output import dumps

_SCRIPT = """\
#!/usr/bin/env bash
# Starts the trainer of study {study}, which begins with the values in {values}.
# Give another command as arguments; it finds the values through {variable}.
set -euo pipefail
{variable}="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
export {variable}
if (( $# )); then exec "$@"; fi
{command}
"""
_NO_COMMAND = 'echo "error: the study names no command; give the one that starts your trainer" >&2; exit 2'


def render(view: RunView, study: StudyDocument | None = None) -> Bundle:
    """The files of a window's export; nothing is written.

    Raises:
        InputError: the run is not of such a trainer, or has no valid configuration.
    """
    values = view.config().trainer
    if not values:
        remedy = "is for runs of a trainer that is not this project's, and this run is ours; give torchrun"
        raise InputError("--to", "trainer", remedy)
    if target_of(view) != "trainer":
        raise InputError("--to", "trainer", "is for a trainer that is tuned while it goes; give command")
    name = view.labels.get("study") or view.labels.get("live") or ""
    words = {"study": name, "values": VALUES, "variable": FOLDER_VARIABLE, "command": _command(view, name)}
    files = {
        VALUES: dumps({"number": 0, "values": values}) + "\n",
        "run.sh": _SCRIPT.format(**words),
        "provenance.json": dumps(provenance(source(view, study)).as_dict()) + "\n",
    }
    return Bundle(f"{name or 'run'}-{view.id}", files, frozenset({"run.sh"}))


def target_of(view: RunView) -> str:
    """What a run is exported to whose trainer is not this project's: ``command`` if it is a trial of one."""
    file = _study(view, view.labels.get("study") or "")
    return "command" if file is not None and file.command is not None else "trainer"


def _study(view: RunView, name: str) -> study_file.StudyFile | None:
    """The file of a study; None if it is gone."""
    try:
        return study_file.load(view.folder.parent / STUDIES / name / STUDY_GIVEN)
    except InputError:
        return None


def _command(view: RunView, study: str) -> str:
    file = _study(view, study)
    live = file.live if file is not None else None
    return (live.trainer.command if live and live.trainer else None) or _NO_COMMAND
