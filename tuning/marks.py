"""What was worked out of single trials, kept from one state of a study to the next."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class Marks:
    """Answers by number of trial, for each kind of question; those of a trial hold until something is said about it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, dict[int, Any]]] = {}

    def of(self, what: str, asked: object) -> dict[int, Any]:
        """The answers so far to what is ``asked``, to be added to: none once that is another thing."""
        known = self._known.get(what)
        if known is None or (known[0] is not asked and known[0] != asked):
            known = self._known[what] = (asked, {})
        return known[1]

    def without(self, numbers: Collection[int]) -> Marks:
        """Those of all other trials, apart from these: other threads may still add what an older state says."""
        found = Marks()
        for what, (asked, answers) in self._known.copy().items():
            found._known[what] = (asked, answers.copy())
            for number in numbers:
                found._known[what][1].pop(number, None)
        return found
