"""Budgets, constraints and the front of a study in words and rows, for the terminal and the page.

A study's confirmation in columns, for the terminal and for the page. Pure.

The trials of a study as a list: some of thousands to look at, and all of them to take away. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tuning.spec.objectives import Aim, aim_of, text
from tuning.storage.controllers import words as controller_words
from workbench.text import words

Document = Mapping[str, Any]
_MOST_LISTED = 8
_ENDED = {
    "trials": "the trials are used up",
    "wall_seconds": "the time is used up",
    "gpu_hours": "the GPU-hours are used up",
    "money": "the money is used up",
    "space": "every legal configuration was measured",
    "nothing_runs": "nothing runs",
    "command": "it was stopped by command",
}


def budget(document: Document) -> str:
    """What is used of each budget that has a limit, and what ended the search; empty if only trials are counted."""
    found = document.get("budget") or {}
    limited = {
        name: row for name, row in found.items() if isinstance(row, Mapping) and row.get("limit") is not None
    }
    if set(limited) <= {"trials"}:
        return ""
    parts = [_used(name, row, document) for name, row in limited.items()]
    ended = _ENDED.get(str(found.get("stopped_by")))
    return "; ".join(parts) + (f"; the search ended: {ended}" if ended else "")


def _used(name: str, row: Document, document: Document) -> str:
    used, limit, kept = row["used"], row["limit"], row.get("kept_for_confirmation") or 0
    if name == "trials":
        return f"{used} of {limit} trials"
    if name == "wall_seconds":
        known = f"{words.rough(used)} of {words.rough(limit)}"
    else:
        unit = (
            "GPU-hours" if name == "gpu_hours" else (document.get("price") or {}).get("currency") or "money"
        )
        known = f"{text(used)} of {text(limit)} {unit}"
    share = words.percent(kept / limit) if limit else words.NOTHING
    return known + (
        f" ({share} is kept for the confirmation)" if kept and not document_ended(document) else ""
    )


def controllers(members: Sequence[Document]) -> str:
    """Who works on a study, and at which trial."""
    parts = []
    for member in members:
        trial = member.get("trial")
        parts.append(f"{controller_words(dict(member))}: {'waits' if trial is None else f'trial {trial}'}")
    return f"{len(members)} controllers: " + "; ".join(parts)


def document_ended(document: Document) -> bool:
    """Whether a study is over."""
    return document.get("state") == "ended"


def constraints(document: Document) -> list[str]:
    """One line for each trial that has a value and breaks a constraint, or cannot tell whether it does."""
    return [
        f"trial {row.get('number')}: {limit['reason']}"
        for row in document.get("trials") or []
        for limit in row.get("limits") or []
        if limit["state"] != "satisfied"
    ]


def kept(document: Document) -> str:
    """What the best trial leaves of each constraint; empty without any."""
    best = (document.get("best") or {}).get("trial")
    rows = document.get("trials") or []
    row: Document = next((row for row in rows if row.get("number") == best), {})
    return "; ".join(limit["reason"] for limit in row.get("limits") or [])


def front(document: Document) -> dict[str, list[Any]]:
    """The points of a pareto front, column by column: trial, whether it is the best, each objective, configuration."""
    points = document.get("pareto") or []
    aims = [aim_of({**document, "objective": name}) for name in document.get("objectives") or ()]
    columns: dict[str, list[Any]] = {
        "trial": [point["trial"] for point in points],
        "decides": ["best" if point["decides"] else "" for point in points],
    }
    for aim in aims:
        rows = [point["objectives"][aim.name] for point in points]
        columns[aim.unit] = [value(row, aim) for row in rows]
    return columns | {"configuration": [point["label"] for point in points]}


def value(row: Document, aim: Aim) -> str:
    """A measure and its interval; without one it is a single value of the run."""
    shown = [aim.in_unit(row.get(end)) for end in ("value", "low", "high")]
    around = words.around(shown[1], shown[2])
    return text(shown[0]) + (f" ({around})" if around else "")


def listed(numbers: Sequence[int]) -> str:
    """``1, 2 and 5``; of many how many there are."""
    if len(numbers) > _MOST_LISTED:
        return f"{numbers[0]}, {numbers[1]} and {len(numbers) - 2} more"
    *first, last = map(str, numbers) if numbers else ("",)
    return f"{', '.join(first)} and {last}" if first else last


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
    from tuning.analysis.confirmation import rule_title  # most commands describe no confirmation

    rule = rule_title(found["decided_by"])
    lines = [
        f"measured again in the order {order}",
        f"trial {found['recommended']} is recommended by {rule}: {found['why']}",
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


#: So many rows of a table are shown at a time.
SHOWN = 200
NEWEST, BEST, FAILED = "Newest", "Best", "Without a value"
CHOICES = (NEWEST, BEST, FAILED)
Row = Mapping[str, Any]
_COPIED = ("run", "seconds", "source", "attempt", "retry_of", "confirms", "reason")


def all_rows(document: Mapping[str, Any]) -> list[Row]:
    """Trials of the search and those that measured one again, by number."""
    rows = [*(document.get("trials") or []), *(document.get("confirmations") or [])]
    return sorted(rows, key=lambda row: int(row["number"]))


def window(rows: Sequence[Row], choice: str = NEWEST) -> tuple[list[Row], str]:
    """At most ``SHOWN`` of the rows, what was asked for last, and in words which these are; no words for all."""
    found = list(rows)
    if choice == BEST:
        valued = [row for row in found if row.get("value") is not None]
        found = sorted(valued, key=lambda row: (float(row["value"]), -int(row["number"])))
    elif choice == FAILED:
        found = [
            row for row in found if row.get("value") is None and row.get("outcome") not in (None, "running")
        ]
    shown = found[-SHOWN:]
    if len(shown) == len(rows):
        return shown, ""
    kind = {NEWEST: "the newest", BEST: "the best"}.get(choice, "the newest without a value,")
    many = f"{kind} {len(shown):,}" if len(shown) < len(found) else f"all {len(shown):,} {_OF[choice]}"
    return shown, f"Showing {many} of {len(rows):,} trials."


_OF = {NEWEST: "", BEST: "with a value", FAILED: "without a value"}


def as_csv(document: Mapping[str, Any]) -> str:
    """All trials, a line each; values in the unit that people see, knobs under their dotted keys."""
    rows, aim = all_rows(document), aim_of(document)
    keys = list(dict.fromkeys(key for row in rows for key in row.get("config") or {}))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["trial", "outcome", aim.unit, "low", "high", *keys, *_COPIED])
    for row in rows:
        config, bounds = row.get("config") or {}, aim.bounds(row.get("low"), row.get("high"))
        known = [row["number"], row.get("outcome") or "running", aim.shown(row.get("value")), *bounds]
        out.writerow([*known, *(config.get(key) for key in keys), *(row.get(name) for name in _COPIED)])
    return text.getvalue()
