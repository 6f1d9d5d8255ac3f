"""The table of layers and candidates from what the ranks tell of their parts, and what is chosen from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.compression.l_greco import Layer, choose
from engine.compression.plan import candidates
from engine.compression.settings import Settings

#: What one rank adds to a layer's squared errors and bytes, for each candidate.
Row = dict[str, list[float]]


def share_of(errors: Sequence[float], sizes: Sequence[float], copies: int) -> Row:
    """A rank's row, so that the sum over all ranks is the mean over those with copies and the sum over the parts that
    other ranks hold: squared errors and bytes of the whole layer.
    """
    return {"squares": [one * one / copies for one in errors], "bytes": [one / copies for one in sizes]}


def chosen(told: Sequence[dict[str, Row]], settings: Settings, alpha: float) -> dict[str, Any]:
    """The value of each layer, the sum of errors with them and with the default, and the budget."""
    table = layers_of(told, settings)
    values = candidates(settings)
    choice = choose(list(table.values()), alpha)
    named = zip(table, choice.candidates, strict=True)
    return {
        "layers": {} if choice.kept_default else {name: values[one] for name, one in named},
        "error": choice.error,
        "error_uniform": float(sum(layer.errors[layer.default] for layer in table.values())),
        "budget": choice.budget,
    }


def layers_of(told: Sequence[dict[str, Row]], settings: Settings) -> dict[str, Layer]:
    """Layers by name, in the order in which ranks name them; each with the Frobenius norm of its error."""
    default, found = candidates(settings).index(settings.value), dict[str, Layer]()
    for name in dict.fromkeys(name for rows in told for name in rows):
        rows = [rows[name] for rows in told if name in rows]
        squares, sizes = (np.sum([row[key] for row in rows], axis=0) for key in ("squares", "bytes"))
        found[name] = Layer(np.sqrt(squares), sizes, default)
    return found


def means(told: Sequence[Sequence[float]]) -> list[float]:
    """Of each number, over the ranks."""
    return [float(one) for one in np.mean(told, axis=0)]
