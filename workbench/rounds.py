"""A study's confirmation in columns, for the terminal and for the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuning.spec.objectives import aim_of
from workbench import words

Document = Mapping[str, Any]


def columns(document: Document) -> dict[str, list[str]]:
    """One line for each arm that was measured again: its value in each round, and itself beside the baseline; empty
    where nothing was.
    """
    found = document.get("confirmation_rounds")
    if not found:
        return {}
    aim, arms = aim_of(document), found["arms"]
    rounds = max(len(arm["rounds"]) for arm in arms)
    return {
        "trial": [str(arm["trial"]) for arm in arms],
        "is": [_role(arm, found) for arm in arms],
        f"search, {aim.unit}": [words.number(aim.shown(arm["searched_value"])) for arm in arms],
        **{
            f"round {number + 1}, {aim.unit}": [
                words.number(aim.shown(arm["rounds"][number]["value"])) if number < len(arm["rounds"]) else ""
                for arm in arms
            ]
            for number in range(rounds)
        },
        _beside(found): [_ratio(arm, found) for arm in arms],
        "peak memory": [words.gib(arm["peak_memory_bytes"]) for arm in arms],
        "turned": [str(arm["complexity"]) for arm in arms],
        "configuration": [str(arm["label"]) for arm in arms],
    }


def caption(document: Document) -> str:
    """In which order trials were measured again, who is recommended by which rule, and what differed; empty without."""
    found = document.get("confirmation_rounds")
    if not found:
        return ""
    order = " ".join(map(str, found["order"]))
    rule = {"speed": "by speed", "memory": "by memory headroom", "simplicity": "by simplicity"}[
        found["decided_by"]
    ]
    lines = [
        f"measured again in the order {order}",
        f"trial {found['recommended']} is recommended {rule}: {found['why']}",
    ]
    return "; ".join([*lines, *found["flags"]])


def _role(arm: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    roles = [
        ("baseline", arm["is_baseline"]),
        ("fastest", arm["trial"] == found["winner"]),
        ("recommended", arm["trial"] == found["recommended"]),
    ]
    return ", ".join(name for name, is_it in roles if is_it)


def _beside(found: Mapping[str, Any]) -> str:
    """Where the baseline cannot run the best of the search is what the others stand beside."""
    plain = any(arm["is_baseline"] for arm in found["arms"])
    return "beside the baseline" if plain else f"beside trial {found['beside']}"


def _ratio(arm: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if arm["is_baseline"] or arm["trial"] == found.get("beside"):
        return ""
    return f"{arm['ratio']:.3f} ({words.interval(arm['low'], arm['high'], 3)})"
