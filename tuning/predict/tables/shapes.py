"""The shapes behind the names of models in published tables, from ``data/models.csv``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError
from tuning.predict.tables.reading import DATA, Columns, Sheet, read

#: What a family's models have in common with none of another's.
_FIGURES = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "sequence", "mlp_matrices", "tied",
)  # fmt: skip


@functools.cache
def _sheet() -> Sheet:
    return read(DATA / "models.csv")


def columns(family: str, models: NDArray[Any], sequence: NDArray[Any] | None = None) -> Columns:
    """Sizes of each model, a row for each name; ``sequence`` where the family has many.

    ``positions`` are as many as the sequence is long, or none.

    Raises:
        InputError: the family has no such model.
    """
    table = {row["model"]: row for row in _sheet().rows if row["family"] == family}
    for name in models:
        if name not in table:
            raise InputError("model", str(name), f"{family} has {', '.join(table)}")
    rows = [table[name] for name in models]
    found = {name: np.array([float(row[name] or "nan") for row in rows]) for name in _FIGURES}
    if sequence is not None:
        found["sequence"] = sequence.astype(np.float64)
    return found | {"positions": np.array([float(row["positions"]) for row in rows]) * found["sequence"]}
