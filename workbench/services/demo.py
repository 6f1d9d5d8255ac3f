"""The demo study: found beside the package, resumed if it was interrupted, and named anew once it has ended."""

from __future__ import annotations

import itertools
from pathlib import Path

from engine.config.errors import InputError
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.storage.study_folder import STUDIES, load_study
from workbench.home.inputs import read_tree
from workbench.services import jobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def start(home: Path, example: Path = EXAMPLE) -> tuple[str, jobs.Job | None]:
    """Start the demo study as a process of its own; no process if it is being run already.

    Raises:
        InputError: there is no example beside the package, or the home folder cannot be written.
    """
    if not example.is_file():
        raise InputError(
            "--demo", str(example), "is not there; run the demo from a checkout of the workbench"
        )
    tree = read_tree(example, "--demo")
    name, running = _next_name(home, tree, str(tree.get("name", "quickstart")))
    if running:
        return name, None
    folder = jobs.new_folder(home)
    study_file = folder / "study.yaml"
    text = example.read_text(encoding="utf-8")
    study_file.write_text(text.replace(f"name: {tree['name']}\n", f"name: {name}\n", 1), encoding="utf-8")
    return name, jobs.start(home, ["tune", str(study_file)])


def _next_name(home: Path, tree: dict[str, object], first: str) -> tuple[str, bool]:
    """The first name that is free or belongs to an unfinished study of the same kind, and whether it is running."""
    for number in itertools.count(1):
        name = first if number == 1 else f"{first}-{number}"
        folder = home / STUDIES / name
        if not folder.is_dir():
            return name, False
        view = load_study(folder)
        same = view.journal.fingerprint in (None, _fingerprint(tree, name))
        if same and view.state != "ended":
            return name, view.alive
    raise AssertionError("there is always a next number")


def _fingerprint(tree: dict[str, object], name: str) -> str:
    file: StudyFile = study_file.parse(tree | {"name": name})
    return file.fingerprint()
