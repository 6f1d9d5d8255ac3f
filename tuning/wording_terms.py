"""What constraints and several objectives add to the line that a study comes down to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuning.aims import aim_of

Document = dict[str, Any]


def broken(row: Document) -> str:
    """Which constraints a trial does not keep, and by how much; empty if it keeps all."""
    return "; ".join(
        str(limit["reason"]) for limit in row.get("limits") or [] if limit["state"] != "satisfied"
    )


def none_keeps(document: Document) -> str | None:
    """For a study whose measured trials all break a constraint: the nearest of them."""
    rows = [row for row in document["trials"] if row["value"] is not None]
    if not rows or not all(map(broken, rows)):
        return None
    nearest = min(rows, key=lambda row: (sum(_misses(row)), -row["value"]))
    words = f"{nearest['label']} with {aim_of(document).words(nearest['value'])}"
    none = f"none of {len(rows)} measured configurations keeps every constraint"
    return f"{none}; the nearest, {words}: {broken(nearest)}"


def ruled_out(document: Document) -> str:
    """The best trial that only a constraint keeps from being the best, with what it breaks; empty without one."""
    best, aim = document["best"], aim_of(document)
    rows = [row for row in document["trials"] if (row["value"] or 0.0) > best["value"] and broken(row)]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["value"])
    return f"; {aim.objective.better} but ruled out: {row['label']}, {aim.words(row['value'])}: {broken(row)}"


def front(document: Document) -> str:
    """How many points are worth choosing from."""
    points, names = document.get("pareto") or [], document.get("objectives") or []
    if len(points) < 2:
        return ""
    return f"; decided by {document['objective']}, one of {len(points)} on the front of {' and '.join(names)}"


def baseline_breaks(document: Document) -> str:
    """What the baseline itself does not keep."""
    number = (document.get("baseline") or {}).get("trial")
    return next((broken(row) for row in document["trials"] if row["number"] == number), "")


def _misses(row: Document) -> Iterable[float]:
    return (max(limit["violation"] or 0.0, 0.0) for limit in row["limits"])
