"""Columns of published tables: arrays of equal length under plain names with units.

Such as ``iteration_seconds`` and ``memory_bytes``. Those of a configuration have the names that
``tuning.predict.model.cases`` knows. What a source does not tell is NaN, or missing as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError
from tuning.predict.cluster.csv_table import Sheet
from tuning.predict.model.cases import Cases

Columns: TypeAlias = dict[str, NDArray[Any]]
GIBI = 2.0**30


def decode_column(sheet: Sheet, name: str, meanings: Mapping[str, str] | Mapping[str, int]) -> NDArray[Any]:
    """A column of words, each as what it means.

    Raises:
        InputError: a word has no meaning here.
    """
    words = [str(word) for word in sheet.texts(name)]
    for number, word in enumerate(words, 1):
        if word not in meanings:
            cell = f"{sheet.path.name}: row {number}, column {name}"
            raise InputError(cell, word, f"give one of {', '.join(meanings)}")
    return np.array([meanings[word] for word in words])


def take(columns: Mapping[str, NDArray[Any]], rows: NDArray[Any]) -> Columns:
    """Some rows, by mask or number."""
    return {name: column[rows] for name, column in columns.items()}


def cases(columns: Mapping[str, NDArray[Any]]) -> Cases:
    """Those columns that describe configurations.

    Raises:
        TypeError: a column that has no usual value is missing.
    """
    known = {field.name for field in fields(Cases)}
    return Cases.from_columns(**{name: column for name, column in columns.items() if name in known})
