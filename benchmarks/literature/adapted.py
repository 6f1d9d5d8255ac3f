"""LoSA beside LoRA (``_adapted.py``): what is trained beside a frozen decoder."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _adapted as adapted
from benchmarks import _table as table
from benchmarks._ratio import Ratio
from benchmarks.literature import System

#: How far everything, trained again, may be from itself where seconds are to be told.
_STEADY = 0.1
_BUSY = "; the machine was too busy to tell seconds to a tenth"
#: Drawn images are learned sooner than text.
_IMAGES = adapted.Size(before=15, steps=60, tried=30, every=5)


def _line(given: Namespace, measures: bool) -> list[str]:
    kept = adapted.run(adapted.Size()) if measures else json.loads(adapted.KEPT.read_text("utf-8"))
    if measures:
        table.show(adapted.NAME, adapted.title(kept), adapted.HEADER, adapted.rows(kept), given.save)
        images, name = adapted.run(_IMAGES, adapted.IMAGES), f"{adapted.NAME}_images"
        title = adapted.title(images, adapted.IMAGES)
        table.show(name, title, adapted.HEADER, adapted.rows(images), given.save)
    seen = adapted.IMAGES.kept
    return line(kept, json.loads(seen.read_text("utf-8")) if seen.exists() else None)


def line(kept: dict[str, Any], images: dict[str, Any] | None = None) -> list[str]:
    """Of what was measured of text, and of images."""
    sent = kept["bytes"][adapted.LOSA] / (4 * adapted.learned(adapted.LOSA))
    shares = {kind: adapted.share_kept(kept, kind) for kind in (adapted.LOSA, adapted.LORA)}
    beside = {end: adapted.above(kept, adapted.LOSA, adapted.LORA, end) for end in ("steps", "seconds")}
    full = adapted.above(kept, adapted.LOSA, adapted.FULL, "steps")
    missed = {
        "bytes": sent != 1,
        "activations": shares[adapted.LOSA] > adapted.MOST_KEPT,
        "loss beside LoRA at equal seconds": beside["seconds"] > 0,
    }
    said = [name for name, misses in missed.items() if misses]
    verdict = f"misses its bar of {', '.join(said)}" if said else "keeps its bars"
    again, seen = adapted.time_of(kept, adapted.AGAIN), ""
    if not _is_steady(again):
        verdict += _BUSY
    if images is not None:
        ends = [adapted.above(images, adapted.LOSA, adapted.LORA, end) for end in ("steps", "seconds")]
        steady = adapted.time_of(images, adapted.AGAIN)
        seen = (
            f"; on images {ends[0]:+.1%} beside LoRA at equal steps, {ends[1]:+.1%} at equal seconds "
            f"(A/A {steady.plain()})"
        )
        verdict = f"on text {verdict}; on images {_of_images(ends)}" + ("" if _is_steady(steady) else _BUSY)
    return [
        "LoSA beside LoRA, `train.adapt`",
        "dp equals one process to 1e-5, what is frozen to the bit (tests)",
        f"gradients averaged: counted / parameters that learn {sent:.4f} of 4 bytes",
        "bytes and memory, not seconds",
        f"keeps {shares[adapted.LOSA]:.1%} of the activations, LoRA {shares[adapted.LORA]:.1%}; a step takes "
        f"{adapted.time_of(kept, adapted.LOSA).plain()} of everything's time, LoRA's "
        f"{adapted.time_of(kept, adapted.LORA).plain()} (A/A {again.plain()}); loss "
        f"{beside['steps']:+.1%} beside LoRA at equal steps, {beside['seconds']:+.1%} at equal seconds, "
        f"{full:+.1%} beside everything{seen}",
        "best accuracy for as many parameters on images (VTAB)",
        verdict,
    ]


def _is_steady(again: Ratio) -> bool:
    """Whether seconds can be told to a tenth."""
    return again.low >= 1 - _STEADY and again.high <= 1 + _STEADY


def _of_images(ends: list[float]) -> str:
    """Of the loss beside LoRA's at equal steps and at equal seconds."""
    return "keeps its bar of loss" if max(ends) <= 0 else "misses its bar of loss"


SYSTEMS = {"adapted": System(adapted.KEPT, _line, (adapted.IMAGES.kept,))}
