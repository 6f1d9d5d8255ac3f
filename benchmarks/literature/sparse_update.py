"""Training within 256 KB (``_sparse_update.py``): chosen parts of an int8 network, beside its last layers."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _sparse_update as sparse
from benchmarks import _table as table
from benchmarks.literature import System

#: Of accuracy, so much below float32's is like it.
WITHIN = 0.01


def _line(given: Namespace, measures: bool) -> list[str]:
    kept = sparse.run() if measures else json.loads(sparse.KEPT.read_text("utf-8"))
    if measures:
        table.show(sparse.NAME, sparse.title(), sparse.HEADER, sparse.rows(kept), given.save)
    return line_of(kept)


def line_of(kept: dict[str, Any]) -> list[str]:
    """Of what was measured."""
    means = {way: sparse.mean(kept, way) for way in sparse.WAYS}
    pairs = zip(
        *(sparse.losses(kept, way, sparse.best(kept, way)) for way in (sparse.PARTS, sparse.LAST)),
        strict=True,
    )
    better = sum(mine < other for mine, other in pairs)
    right = {way: sparse.accuracy(kept, way) for way in sparse.WAYS}
    used = [
        sum(kept[sparse.name_of(sparse.PARTS, sparse.best(kept, sparse.PARTS), seed)]["counted"].values())
        for seed in range(sparse.SEEDS)
    ]
    missed = {
        "bytes": not sparse.same_bytes(kept) or max(used) > sparse.BUDGET * 1024,
        "the last layers": better < sparse.SEEDS,
        "float32": right[sparse.INT8] < right[sparse.FLOAT] - WITHIN,
        "scaling": right[sparse.UNSCALED] >= right[sparse.FLOAT] - WITHIN,
    }
    said = [name for name, misses in missed.items() if misses]
    return [
        "training under 256 KB, workload `sparse_update`",
        "losses of two ranks are those of one process: 1e-5; the choice is the best of all (tests)",
        f"formula and counters {'agree' if sparse.same_bytes(kept) else 'differ'}: {max(used) / 1024:.1f} KiB at most",
        "its memory and what it sends, to the byte",
        f"loss {means[sparse.PARTS]:.3f} beside {means[sparse.LAST]:.3f} of the last layers within the same budget, "
        f"lower with {better} of {sparse.SEEDS} seeds; all of it: accuracy {right[sparse.INT8]:.3f} in int8 and "
        f"{right[sparse.FLOAT]:.3f} in float32 (loss {means[sparse.INT8]:.3f} and {means[sparse.FLOAT]:.3f}), "
        f"{right[sparse.UNSCALED]:.3f} without scaling at the best of its own rates",
        "less than a thousandth of PyTorch's memory (of all that it holds; here tensors alone are counted) at equal "
        "accuracy",
        f"misses its bar of {', '.join(said)}" if said else "keeps its bars",
    ]


SYSTEMS = {"sparse": System(sparse.KEPT, _line)}
