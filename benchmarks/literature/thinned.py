"""SliceOut (``_slices.py``) and WTA-CRS (``_row_sampling.py``): a step that trains a part of its matrices, and weight
gradients from a part of the tokens.
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _row_sampling as sampling
from benchmarks import _slices as slices
from benchmarks import _table as table
from benchmarks.literature import System


def _slices_line(given: Namespace, measures: bool) -> list[str]:
    kept = slices.run(slices.Size()) if measures else json.loads(slices.KEPT.read_text("utf-8"))
    if measures:
        table.show(slices.NAME, slices.title(kept), slices.HEADER, slices.rows(kept), given.save)
    return slice_line(kept)


def slice_line(kept: dict[str, Any]) -> list[str]:
    """Of what was measured."""
    sent, time = kept["bytes"][slices.SLICES], slices.time_of(kept, slices.SLICES)
    worse, seeds = slices.worse(kept, "seconds")
    missed = {
        "bytes": sent["counted"] != sent["formula"],
        "time": time.high > 1 - slices.LESS,
        "loss at equal seconds": slices.lost(kept, "seconds") > 0,
    }
    said = [name for name, misses in missed.items() if misses]
    return [
        f"SliceOut, `train.slice_keep` {slices.KEEP:g}",
        "sliced products: gradients to 1e-5 (tests); lossy by intent",
        f"gradients averaged: counted / by formula {sent['counted'] / sent['formula']:.4f}",
        "seconds are not modelled",
        f"a step takes {slices.time_of(kept, slices.SLICES, slices.SMALL).plain()} of whole matrices' time (A/A "
        f"{slices.time_of(kept, slices.AGAIN, slices.SMALL).plain()}), four times as wide {time.plain()} (A/A "
        f"{slices.time_of(kept, slices.AGAIN).plain()}); "
        f"loss {slices.lost(kept, 'steps'):+.1%} at equal steps, {slices.lost(kept, 'seconds'):+.1%} at equal "
        f"seconds, worse with {worse} of {seeds} seeds",
        "10 to 40 % less time and memory at no loss",
        f"misses its bar of {', '.join(said)}" if said else "keeps its bars",
    ]


def _sampling_line(given: Namespace, measures: bool) -> list[str]:
    kept = sampling.run(sampling.Size()) if measures else json.loads(sampling.KEPT.read_text("utf-8"))
    if measures:
        told = sampling.scatter_rows(kept)
        table.show(f"{sampling.NAME}_scatter", "How far estimates of gradients lie from exact ones, squared, over the "
                   f"squared length, at {sampling.SHARE:g}", sampling.SCATTER_HEADER, told, given.save)  # fmt: skip
        title = f"Weight gradients from a part of the tokens, {sampling.SEEDS} seeds of fine-tuning"
        table.show(sampling.NAME, title, sampling.HEADER, sampling.rows(kept), given.save)
    return sampling_line(kept)


def sampling_line(kept: dict[str, Any]) -> list[str]:
    """Of what was measured."""
    found = sampling.bars(kept) if _is_whole(kept) else None
    name = f"WTA-CRS, `memory.sample_tokens` {sampling.SHARE:g}"
    if found is None:
        return [name, *["not measured yet"] * 6]
    missed = {
        "variance": found.calmer < found.products,
        "bytes": abs(found.counted / found.formula - 1) > 0.001,
        "loss": found.lost > sampling.WITHIN,
    }
    said = [name for name, misses in missed.items() if misses]
    return [
        name,
        "mean of 10,000 draws within its bound (tests)",
        f"bytes spared: counted / by formula {found.counted / found.formula:.4f}",
        "bytes kept, by the same formula",
        f"squared error of gradients below plain draws' for {found.calmer} of {found.products} products "
        f"({found.ratio:.2f} of it), {found.ratio_once:.2f} of that of draws without doubles; loss after fine-tuning "
        f"{found.lost:+.1%}, with four times the batch {found.lost_of_many:+.1%}",
        "2.7 times less memory, nearly no loss",
        f"misses its bar of {', '.join(said)}" if said else "keeps its bars",
    ]


def _is_whole(kept: dict[str, Any]) -> bool:
    names = [f"{kind}, seed {seed}" for kind in sampling.SHARES for seed in range(sampling.SEEDS)]
    return set(names) <= set(kept.get("loss", {}))


SYSTEMS = {
    "sampling": System(sampling.KEPT, _sampling_line),
    "slices": System(slices.KEPT, _slices_line),
}
