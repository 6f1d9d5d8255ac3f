"""Where a study goes by now: its file as commands changed it, its mask, sampler and budget, and who asked for what."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from engine.config import run_config as runconfig
from tuning.spec import sampler_choice
from tuning.spec.sampler_choice import Choice
from tuning.spec.study_file import MAY_CHANGE, StudyFile
from tuning.storage import mask
from tuning.storage.state import StudyState

#: Keys of the file that are no budget, though they may change.
NO_BUDGET = ("seed", "sampler", "prior", "inherit", "racing", "side_by_side")
#: Changed by the same command as budgets, but what they say is how the winner is confirmed.
CONFIRMING = ("confirm_repeats", "confirm_runners_up")


def steered(file: StudyFile, state: StudyState) -> StudyFile:
    """The file with what commands changed in it since; all that a trial measures is as it was."""
    if not state.turned:
        return file
    return changed(file, {key: value for key, value in state.turned.items() if key in StudyFile.model_fields})


def changed(file: StudyFile, changes: dict[str, Any]) -> StudyFile:
    """The file with other values of what may change.

    Raises:
        InputError: a value is none.
    """
    try:
        checked = StudyFile.model_validate(file.model_dump(mode="json") | changes)
    except ValidationError as error:
        raise runconfig.input_error(error, StudyFile) from None
    return file.model_copy(update={key: getattr(checked, key) for key in changes})


def sampler(file: StudyFile, state: StudyState) -> Choice:
    """What proposes now, and why."""
    return sampler_choice.choose(
        file.sampler, file.search_space, file.trials, len(state.trials), len(file.aims)
    )


def document(state: StudyState, file: StudyFile) -> dict[str, Any]:
    """What was steered, by whom and when, and how the study goes now. ``file`` is the steered one."""
    events = ("at_unix", "by", "command", "arguments", "accepted", "reason")
    choice = sampler(file, state)
    return {
        "steering": [{name: getattr(answer, name) for name in events} for answer in state.answers.values()],
        "mask": mask.of_state(state, file.search_space).document(),
        "sampler": {"name": choice.name, "reason": choice.reason},
        "budget_settings": budget(file),
        "continues": list(state.continues),
        "continued_in": (state.successor or {}).get("name"),
        "inherited": [
            {
                "study": earlier.study,
                "same": earlier.same,
                "trials": len(earlier.trials),
                "words": earlier.words,
            }
            for earlier in state.inherited
        ],
    }


def budget(file: StudyFile) -> dict[str, Any]:
    """Every budget of the file that is set, by the name it is changed by."""
    known = [key for key in MAY_CHANGE if key not in (*NO_BUDGET, *CONFIRMING, "budget")]
    found = {key.removeprefix("budget_"): getattr(file, key) for key in known}
    if file.budget is not None:  # its trials and seconds are in the file's own keys, which commands change
        found |= {"gpu_hours": file.budget.gpu_hours, "money": file.budget.money}
    return {key: value for key, value in found.items() if value is not None}
