"""What each layer can be, from what ranks tell of it, and the plan that comes of it. Pure.

Equal error is not equal loss: an error in a small gradient counts as much as one in a large gradient once AdamW has
divided both by their usual size. So what counts is the share of a layer's squares that is lost, and how much the layer
weighs. No one number of a gradient tells that; two do, and a layer's weight is the mean of its shares in both:

- what the layer takes off the loss in a step, to first order: the sum of magnitudes (for AdamW, steepest descent in the
  maximum norm, arXiv 2409.20325);
- how many of its values AdamW moves: (sum |g|)^2 / sum g^2, which is all of them where magnitudes are alike, and few
  where few rows of an embedding have gradients.

Layers of small gradients, as queries and keys have in the beginning, weigh nothing in the first and much in the second;
a head the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.compression.l_greco import Floats, Layer, choose
from engine.config.compression import Settings, candidates

#: What one rank adds to a layer: squared errors and bytes of each candidate; of its gradient the sums of squares and of
#: magnitudes.
Row = dict[str, list[float]]
#: Of the effect of one value a plan may have so much: the rest is for what two numbers of a gradient do not tell.
_MARGIN = 0.9
#: A plan that keeps the loss has to save at least this share of the bytes: else one value stays.
_LEAST_SAVED = 0.05


def share_of(
    squares: Sequence[float], sizes: Sequence[float], energy: float, magnitude: float, copies: int
) -> Row:
    """A rank's row, so that the sum over all ranks is the mean over those with copies and the sum over the parts that
    other ranks hold.
    """
    measures = {"squares": squares, "bytes": sizes, "gradient": [energy, magnitude]}
    return {key: [float(value) / copies for value in values] for key, values in measures.items()}


@dataclass(frozen=True, slots=True)
class Candidates:
    """A layer: Frobenius norms of ``errors`` [c], ``loss_shares`` [c] of the gradient's squares that are lost, and
    ``bytes`` [c]. Of its gradient the sum of magnitudes, and ``moved_values``, how many AdamW moves.
    """

    errors: Floats
    loss_shares: Floats
    bytes: Floats
    magnitude: float
    moved_values: float


def choose_values(
    tables: Sequence[dict[str, Row]], settings: Settings, alpha: float, budget: str
) -> dict[str, Any]:
    """The value of each layer; the sum of errors, and their effect, the mean share that is lost where layers count by
    their weights, both beside those of the one value; and the budget: of the effect for the loss, or of the error.
    """
    table, values = table_of(tables), candidates(settings)
    columns = {
        "error": [candidates.errors for candidates in table.values()],
        "effect": effects_of(list(table.values())),
    }
    sizes, default = [candidates.bytes for candidates in table.values()], values.index(settings.value)
    usual, keeps_loss = (default,) * len(sizes), budget == "loss"
    counted = columns["effect" if keeps_loss else "error"]
    layers = [Layer(errors, size, default) for errors, size in zip(counted, sizes, strict=True)]
    choice = choose(layers, alpha * _MARGIN if keeps_loss else alpha)
    picked, keeps_default = choice.candidates, choice.kept_default
    if keeps_loss and alpha >= 1 and choice.bytes > (1 - _LEAST_SAVED) * _sum(sizes, usual):
        picked, keeps_default = usual, True
    sums = {f"{key}_uniform": _sum(column, usual) for key, column in columns.items()}
    sums |= {key: _sum(column, picked) for key, column in columns.items()}
    named = {} if keeps_default else {name: values[place] for name, place in zip(table, picked, strict=True)}
    return {"layers": named, "budget_of": budget, "budget": choice.budget} | sums


def effects_of(table: Sequence[Candidates]) -> list[Floats]:
    """Of each layer and candidate what it adds to the mean share that is lost."""
    magnitudes = sum(candidates.magnitude for candidates in table) or 1.0
    moved = sum(candidates.moved_values for candidates in table) or 1.0
    return [
        (candidates.magnitude / magnitudes + candidates.moved_values / moved) / 2 * candidates.loss_shares
        for candidates in table
    ]


def table_of(tables: Sequence[dict[str, Row]]) -> dict[str, Candidates]:
    """Layers by name, in the order in which ranks name them."""
    table = dict[str, Candidates]()
    for name in dict.fromkeys(name for rows in tables for name in rows):
        rows = [rows[name] for rows in tables if name in rows]
        squares, sizes, (energy, magnitude) = (
            np.sum([row[key] for row in rows], axis=0) for key in ("squares", "bytes", "gradient")
        )
        whole = float(energy) or 1.0  # a layer without gradients loses nothing
        moved = float(magnitude) ** 2 / whole
        table[name] = Candidates(np.sqrt(squares), squares / whole, sizes, float(magnitude), moved)
    return table


def _sum(columns: Sequence[Floats], picked: Sequence[int]) -> float:
    """Over layers, in the order in which fronts do it, to the same bit."""
    return float(sum(column[place] for column, place in zip(columns, picked, strict=True)))


def means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of each number, over the ranks."""
    return [float(mean) for mean in np.mean(rows, axis=0)]
