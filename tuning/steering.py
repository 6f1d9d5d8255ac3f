"""Commands that change where a running study goes: its mask, its budget, its sampler, or a wider successor. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.config.errors import InputError
from tuning import course, mask, ranking, samplers, succession
from tuning.course import NO_BUDGET, changed
from tuning.knobs import Knob
from tuning.mask import Mask
from tuning.state import StudyState
from tuning.studyfile import MAY_CHANGE, StudyFile
from tuning.terms import Budget, check_price

Arguments = dict[str, Any]
#: What is answered, and what the journal keeps of it.
Reply = tuple[str, dict[str, Any]]


def pin(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """One value for each key.

    Raises:
        InputError: no such value was declared, or no point would be left.
    """
    for key, value in _given("pin", arguments, "parallel.tp=2").items():
        if mask.is_range(value) or len(mask.wanted_values(file.search_space, key, value)) != 1:
            raise InputError(key, value, f"pin takes one value; give several to narrow {key}=..")
    return narrow(arguments, state, file)


def narrow(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Some of the declared values for each key; ``all`` of them ends what was narrowed.

    Raises:
        InputError: no such value was declared, or no point would be left.
    """
    space = file.search_space
    given = _given("narrow", arguments, "batch.micro_batch=1,2")
    return _masked({key: mask.limit(space, key, value) for key, value in given.items()}, state, file)


def unpin(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """All declared values of each key again.

    Raises:
        InputError: a key is not pinned or narrowed.
    """
    known = mask.of_state(state, file.search_space).by_key
    for key in _given("unpin", arguments, "parallel.tp"):
        if key not in known:
            raise InputError("unpin", key, f"is not pinned or narrowed; now: {', '.join(known) or 'nothing'}")
    return _masked(dict.fromkeys(arguments), state, file)


def widen(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """More values for each key: less of a mask, or a successor where they were not declared.

    Raises:
        InputError: nothing would be wider, a run refuses a value, or no legal point has it.
    """
    space = file.search_space
    given = _given("widen", arguments, "parallel.tp=1,2,4")
    if any(not _was_declared(file, key, value) for key, value in given.items()):
        return succession.announce(given, state, file)
    now = mask.of_state(state, space).by_key
    limits: dict[str, Knob | None] = {}
    for key, value in given.items():
        if key not in now:
            raise InputError(
                "widen", key, f"is not narrowed; all that was declared is open ({space.by_key[key]})"
            )
        added = mask.limit(space, key, value)
        limits[key] = added and mask.union(mask.declared(space, key), now[key], added)
    return _masked(limits, state, file)


def budget(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Another number of trials, of seconds, or of what else the study file has a budget of.

    Raises:
        InputError: the study has no such budget, or its value is not one.
    """
    changes: dict[str, Any] = {}
    for name, value in _given("budget", arguments, "trials=40").items():
        changes |= _budget_key(name, value, file, changes)
    after = changed(file, changes)
    check_price(after.price, after.budget, (), None)
    done = len(ranking.counted(state))
    ends = f"; {done} are done, so the search ends" if done >= after.trials else ""
    words = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"the budget is {words} from here on{ends}", {"changes": {"turned": changes}}


def sampler(arguments: Arguments, state: StudyState, file: StudyFile) -> Reply:
    """Another sampler, told all trials so far.

    Raises:
        InputError: there is no such sampler, or it does not fit this space.
    """
    name = arguments.get("name")
    after = changed(file, {"sampler": name})
    samplers.check(after.sampler, after.search_space)
    choice = course.sampler(after, state)
    return f"{choice.name} from here on: {choice.reason}", {"changes": {"turned": {"sampler": name}}}


STEERING: dict[str, Callable[[Arguments, StudyState, StudyFile], Reply]] = {
    "pin": pin,
    "unpin": unpin,
    "narrow": narrow,
    "widen": widen,
    "budget": budget,
    "sampler": sampler,
}


def _given(command: str, arguments: Arguments, example: str) -> Arguments:
    if not arguments:
        raise InputError(command, None, f"needs at least one key, e.g. {command} {example}")
    return arguments


def _was_declared(file: StudyFile, key: str, value: Any) -> bool:
    space = file.search_space
    if value == mask.ALL or key == mask.DATA_PARALLEL:
        return True
    if key not in space.by_key:
        return False
    return all(space.by_key[key].contains(each) for each in mask.wanted_values(space, key, value))


def _masked(limits: dict[str, Knob | None], state: StudyState, file: StudyFile) -> Reply:
    """The mask with some limits changed, if it leaves anything to measure."""
    space = file.search_space
    known = {key: knob for key, knob in mask.of_state(state, space).by_key.items() if key not in limits}
    after = Mask(tuple(replace(knob, key=key) for key, knob in (known | limits).items() if knob))
    mask.check_leaves_points(space, after, ranking.visited(state, space))
    words = f"proposals keep to {after}" if after.limits else "every declared value is open again"
    documents = {key: knob and knob.document() for key, knob in limits.items()}
    return words, {"changes": {"limits": documents}}


def _budget_key(name: str, value: Any, file: StudyFile, before: dict[str, Any]) -> dict[str, Any]:
    """The key of the file that a budget's name stands for."""
    known = [key for key in MAY_CHANGE if key not in NO_BUDGET and key != "budget"]
    if name in known:
        return {name: value}
    if f"budget_{name}" in known:
        return {f"budget_{name}": value}
    if name in Budget.model_fields:
        now = before.get("budget") or file.model_dump(mode="json", exclude_unset=True).get("budget") or {}
        return {"budget": now | {name: value}}
    names = ", ".join(dict.fromkeys([*(key.removeprefix("budget_") for key in known), *Budget.model_fields]))
    raise InputError("budget", name, f"is none of this study's; known: {names}")
