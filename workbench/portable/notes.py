"""What is different for a study in its new home, said in lines; and its Optuna file, made again."""

from __future__ import annotations

import json
from pathlib import Path

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.calibration import fingerprint
from tuning.storage import study_folder
from workbench.portable.journals import Names
from workbench.portable.manifest import Manifest


def of_study(folder: Path, manifest: Manifest, names: Names) -> tuple[str, ...]:
    """Lines about a study that was unpacked as ``folder``, whose Optuna file is made here unless it is a large one."""
    found = [_index(folder), _machine(manifest), _data(folder), _own_file(manifest, names)]
    return tuple(line for line in found if line)


def _index(folder: Path) -> str:
    """Optuna's file is made from the journal, later if that takes more than a moment; a study that this version
    refuses can still be read.
    """
    from tuning.sampling.optuna_export import MOMENT
    from tuning.sampling.optuna_export_backlog import rebuild

    try:
        return rebuild(folder, most=MOMENT)
    except InputError as error:
        return f"this version refuses its study file, so it can be read but not gone on with: {error}"


def _machine(manifest: Manifest) -> str:
    here = fingerprint.here().id
    if manifest.machine in (None, here):
        return ""
    return (
        f"its trials ran on another machine ({manifest.machine}, here {here}): what is measured here from now on "
        "cannot be compared with them"
    )


def _data(folder: Path) -> str:
    file = run_folder.read_json(folder / study_folder.STUDY)
    path = ((file or {}).get("base") or {}).get("data", {}).get("path")
    if not path or Path(path).exists():
        return ""
    return f"its data, {path}, is not here: the study can be read and exported, but not gone on with"


def _own_file(manifest: Manifest, names: Names) -> str:
    if names[manifest.study] == manifest.study:
        return ""
    return f"in a study file of your own, the name is {json.dumps(names[manifest.studies[0]])} from now on"
