"""The trials of a study as a list: some of thousands to look at, and all of them to take away. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from tuning.spec.objectives import aim_of

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
    return shown, f"Shown are {many} of {len(rows):,} trials."


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
