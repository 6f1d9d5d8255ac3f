"""Many configurations at a time, as one array for each quantity: what the closed forms work on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

NO_RECOMPUTE, SELECTIVE, FULL = 0, 1, 2
#: What a column is where nothing is said.
_USUAL: Mapping[str, float] = {
    "mlp_matrices": 2,
    "dp": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "chunks": 1,
    "zero_stage": 0,
    "recompute": NO_RECOMPUTE,
    "sequence_parallel": 0,
    "flash": 0,
    "dropout": 0,
    "tied": 1,
    "positions": 0,
    "weight_bytes": 2,
    "gradient_bytes": 4,
    "optimizer_bytes": 12,
    "reduce_bytes": 4,
    "reduce_every_micro_batch": 0,
    "bucketed": 1,
    "scattered_boundary": 0,
    "value_bytes": 2,
    "devices_per_node": 8,
    "bubble_scale": 1,
    "ulysses": 0,
    "period": 1,
    "late": 0,
    "last_layers": 0,
    "other_layers": 0,
}


@dataclass(frozen=True, slots=True)
class Cases:
    """Columns of equal length, a row for each configuration.

    Sizes of a decoder: ``ffn_hidden`` of ``mlp_matrices`` matrices (2, or 3 with a gate), ``sequence`` in tokens,
    ``tied`` input and output embeddings, learned ``positions`` (their number). Degrees of parallelism;
    ``micro_batch`` in sequences and ``micro_batches`` a step and replica; ``chunks`` a pipeline rank.
    ``recompute`` is 0 (nothing), 1 (the attention core) or 2 (whole blocks).

    ``weight_bytes``, ``gradient_bytes``, ``optimizer_bytes`` (with fp32 weights, if there are some) and
    ``reduce_bytes`` are of one parameter, ``value_bytes`` of one value between blocks. ``bucketed`` gradients leave
    beside backward. ``scattered_boundary``: each tp rank sends its slice to the next stage. ``last_layers`` are those
    of the last pipeline rank, which has the head, and ``other_layers`` the most of any other; 0 deals them evenly.
    ``bubble_scale``: a schedule's bubble in times of 1F1B's or interleaved 1F1B's. cp is a ring, or ``ulysses``.
    Replicas that train by themselves meet every ``period`` steps, and with ``late`` beside the steps that follow.
    """

    layers: Array
    hidden: Array
    heads: Array
    kv_heads: Array
    ffn_hidden: Array
    vocabulary: Array
    sequence: Array
    micro_batch: Array
    micro_batches: Array
    mlp_matrices: Array
    dp: Array
    tp: Array
    pp: Array
    cp: Array
    chunks: Array
    zero_stage: Array
    recompute: Array
    sequence_parallel: Array
    flash: Array
    dropout: Array
    tied: Array
    positions: Array
    weight_bytes: Array
    gradient_bytes: Array
    optimizer_bytes: Array
    reduce_bytes: Array
    reduce_every_micro_batch: Array
    bucketed: Array
    scattered_boundary: Array
    value_bytes: Array
    devices_per_node: Array
    bubble_scale: Array
    ulysses: Array
    period: Array
    late: Array
    last_layers: Array
    other_layers: Array

    @classmethod
    def of(cls, **columns: object) -> Cases:
        """From columns or single values; what is not given is usual (a GPT's block, degrees of 1, mixed precision).

        Raises:
            TypeError: a column that has no usual value is missing, or one is unknown.
        """
        given: dict[str, object] = {**_USUAL, **columns}
        given.setdefault("kv_heads", given.get("heads"))
        given.setdefault("ffn_hidden", 4 * np.asarray(given.get("hidden"), dtype=np.float64))
        names = [field.name for field in fields(cls)]
        unknown, missing = set(given) - set(names), [name for name in names if given.get(name) is None]
        if unknown or missing:
            raise TypeError(f"unknown columns: {sorted(unknown)}; missing: {missing}")
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(given[name], np.float64)) for name in names))
        return cls(**{name: np.ascontiguousarray(array) for name, array in zip(names, arrays, strict=True)})

    @classmethod
    def joined(cls, parts: Sequence[Cases]) -> Cases:
        """One after the other."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.layers)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Cases:
        """Some of the rows, by mask or number."""
        return Cases(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def rows(self) -> list[tuple[float, ...]]:
        """Each configuration as a tuple of its values."""
        table = np.stack([getattr(self, field.name) for field in fields(self)], axis=1)
        return [tuple(row) for row in table.tolist()]

    def put(self, **columns: Array) -> Cases:
        """The same with other columns."""
        return replace(self, **columns)

    @property
    def world(self) -> Array:
        """Ranks in all."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> Array:
        """Sequences a step."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def tokens(self) -> Array:
        """Tokens a step."""
        return self.global_batch * self.sequence

    @property
    def head_dim(self) -> Array:
        """Values of a head."""
        return self.hidden / self.heads

    @property
    def block_parameters(self) -> Array:
        """Of one block: attention, feed-forward and norms (biases left out)."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + self.mlp_matrices * self.hidden * self.ffn_hidden + 2 * self.hidden

    @property
    def embedding_parameters(self) -> Array:
        """Of the input embedding alone."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def parameters(self) -> Array:
        """Of the model."""
        head = np.where(self.tied > 0, 0.0, self.vocabulary * self.hidden)
        return self.layers * self.block_parameters + self.embedding_parameters + head

    @property
    def model_flops(self) -> Array:
        """Of a step, forward and backward, without recomputation; attention counted in full (arXiv 2104.04473)."""
        block = 2 * self.block_parameters + 4 * self.sequence * self.hidden
        return 3 * self.tokens * (self.layers * block + 2 * self.hidden * self.vocabulary)
