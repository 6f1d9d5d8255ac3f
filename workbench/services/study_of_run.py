"""The study that tunes a run which is going already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.errors import InputError
from engine.config.layout import least_steps, round_steps
from workbench.home import inputs, runs
from workbench.home.resolve import Target

if TYPE_CHECKING:
    from tuning.spec.study_file import StudyFile

#: Rounds that a window of an attached run measures.
ROUNDS = 12
#: A study of a run that was going already is named after it.
PREFIX = "live-"


def study_of_run(home: Path, target: Target, trials: int | None = None) -> StudyFile:
    """The study that tunes a run which is going: its configuration as it is now, and what can be turned in it.

    Raises:
        InputError: it is a study or has ended, somebody else turns it, or nothing of it can be turned.
    """
    from tuning.spec import study_file
    from tuning.storage import study_folder
    from tuning.storage.study_folder import STUDIES

    if target.kind != "run":
        raise InputError("run", target.id, "is a study; give a run that is going on")
    view = runs.load(target.folder)
    if view.state == "ended":
        raise InputError("run", target.id, f"has ended already: {view.outcome}; give one that is going on")
    if study := view.labels.get("study"):
        raise InputError(
            "run", target.id, f"is a trial of {study}, which turns it; wait for that study's end"
        )
    if study := view.labels.get("live"):
        raise InputError("run", target.id, f"is tuned by {study} already; steer that study")
    path = home / STUDIES / f"{PREFIX}{target.id}" / study_folder.STUDY_GIVEN
    if path.exists():
        return inputs.study_file(path, [], trials, None)
    config = view.config()
    base = config.model_dump(mode="json", exclude_defaults=True)
    for key in ("dp", "world_size"):
        base.get("parallel", {}).pop(key, None)
    base["train"] = base.get("train", {}) | {"steps": least_steps(config, 0) + ROUNDS * round_steps(config)}
    base["train"] |= {"resume": None, "validate_every": None}
    tree = {
        "name": f"{PREFIX}{target.id}",
        "ranks": view.status.world_size or 1,
        "live": {"steps": config.train.steps},
        "base": base,
    }
    return study_file.parse(tree | ({} if trials is None else {"trials": trials}))
