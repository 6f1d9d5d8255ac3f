"""A CSV file whose first lines tell where it comes from, and its columns as arrays. Pure but for the file.

What a source does not tell is NaN, or missing as a whole; nothing is filled in.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError

#: What ships with the package.
DATA = Path(__file__).parent / "data"
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Sheet:
    """A file as it stands: ``comments`` say where the rows come from; every cell is text."""

    path: Path
    comments: tuple[str, ...]
    names: tuple[str, ...]
    rows: tuple[dict[str, str], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, name: str) -> NDArray[Any]:
        """A column of text."""
        if name not in self.names:
            raise InputError(
                "table", str(self.path), f"it has no column {name!r}; it has {', '.join(self.names)}"
            )
        return np.array([row[name] for row in self.rows], dtype=np.str_)

    def numbers(self, name: str, unit: float = 1.0) -> NDArray[Any]:
        """A column of numbers, each times ``unit``; NaN where nothing stands."""
        return np.array(self._convert_column(name, _number), dtype=np.float64) * unit

    def whole(self, name: str) -> NDArray[Any]:
        """A column of whole numbers, none of which is missing."""
        return np.array(self._convert_column(name, int), dtype=np.int64)

    def _convert_column(self, name: str, convert: Callable[[str], float]) -> list[float]:
        values = []
        for number, text in enumerate(self.texts(name), 1):
            try:
                values.append(convert(str(text)))
            except ValueError:
                wanted = "a whole number" if convert is int else "a number, or nothing"
                place = f"{self.path.name}: row {number}, column {name}"
                raise InputError(place, str(text), f"give {wanted}") from None
        return values


def _number(text: str) -> float:
    return float(text) if text.strip() else float("nan")


def read(path: Path) -> Sheet:
    """A CSV file; lines that begin with # are comments.

    Raises:
        InputError: the file cannot be read, has no column, or a row that is longer or shorter than its heading.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("table", str(path), f"cannot be read ({error}); name a CSV file") from None
    comments = tuple(line.lstrip("# ") for line in lines if line.startswith("#"))
    reader = csv.reader(line for line in lines if line and not line.startswith("#"))
    names = tuple(next(reader, ()))
    if not names:
        raise InputError("table", str(path), "it is empty; its first line names the columns")
    rows = []
    for number, cells in enumerate(reader, 1):
        if len(cells) != len(names):
            remedy = f"give one cell for each of the {len(names)} columns"
            raise InputError(f"{path.name}: row {number}", f"{len(cells)} cells", remedy)
        rows.append(dict(zip(names, cells, strict=True)))
    return Sheet(path, comments, names, tuple(rows))
