"""The step records of all ranks side by side: one row a rank, one column a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.records import PHASES
from profilers.table import Column, Table

PHASE_FIELDS = tuple(f"{phase}_seconds" for phase in PHASES)
_FIELDS = ("measured", "start_unix", "step_seconds", "cpu_seconds", *PHASE_FIELDS, "loss", "gradient_norm")


@dataclass(frozen=True, slots=True)
class JoinedSteps:
    """``values[field]`` has shape (ranks, steps) and is masked where a rank did not record a step."""

    ranks: list[int]
    steps: np.ndarray[Any, np.dtype[np.int64]]
    values: dict[str, Column]

    def measured(self) -> JoinedSteps:
        """Only measured steps, and of those only the ones that no rank is missing from.

        The last step of a killed run is there for some ranks only; its slowest rank is not known.
        """
        present = self.values["measured"].count(axis=0)
        complete = present == present.max(initial=0)
        wanted = complete & np.ma.filled(self.values["measured"], 0).any(axis=0)
        return self._of(wanted)

    def detailed(self) -> JoinedSteps:
        """Only steps whose phases every rank recorded."""
        wanted = ~np.ma.getmaskarray(self.values[PHASE_FIELDS[0]]).any(axis=0)
        return self._of(wanted)

    def between(self, first: int | None, end: int | None) -> JoinedSteps:
        """The steps from ``first`` on that come before ``end``; None for no bound."""
        start = 0 if first is None else int(np.searchsorted(self.steps, first))
        stop = len(self.steps) if end is None else int(np.searchsorted(self.steps, end))
        return self._of(slice(start, stop))

    def _of(self, wanted: Any) -> JoinedSteps:
        """The chosen steps: a mask or a slice of them."""
        columns = {name: values[:, wanted] for name, values in self.values.items()}
        return JoinedSteps(self.ranks, self.steps[wanted], columns)


def join_steps(tables: dict[int, Table]) -> JoinedSteps:
    """Joins the ``step`` tables of some ranks. If a rank recorded a step twice, the later record counts."""
    tables = {rank: table for rank, table in sorted(tables.items()) if len(table)}
    columns = {rank: np.asarray(table.column("step")) for rank, table in tables.items()}
    steps = np.unique(np.concatenate([*columns.values(), np.empty(0, np.int64)]).astype(np.int64))
    places = {rank: np.searchsorted(steps, column) for rank, column in columns.items()}
    values = {name: _joined(name, tables, places, len(steps)) for name in _FIELDS}
    return JoinedSteps(list(tables), steps, values)


def _joined(
    name: str, tables: dict[int, Table], places: dict[int, np.ndarray[Any, Any]], steps: int
) -> Column:
    joined: Column = np.ma.MaskedArray(np.zeros((len(tables), steps)), mask=True)
    for row, (rank, table) in enumerate(tables.items()):
        joined[row, places[rank]] = table.column(name)
    return joined
