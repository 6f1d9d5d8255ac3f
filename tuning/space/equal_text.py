"""Trials that turn the global batch learn from equally much text, and are judged by the same held-out text. Pure.

With a larger batch they have fewer steps and fewer evaluations. The held-out text is a number of global batches, which
follows, too.
"""

from __future__ import annotations

from fractions import Fraction

from engine.config.run_config import RunConfig

GLOBAL_BATCH = "batch.global_batch"


def values(base: RunConfig, global_batch: int) -> dict[str, int]:
    """What else a configuration with this global batch has, so that it sees the tokens that the ``base`` does."""
    train, part = base.train, Fraction(base.batch.global_batch, global_batch)
    changed = {"train.steps": max(train.warmup + 1, -int(-train.steps * part // 1))}
    changed["train.validation_batches"] = int(train.validation_batches * part)
    if train.validate_every is not None:
        changed["train.validate_every"] = max(1, round(train.validate_every * part))
    return changed


def problem(base: RunConfig, global_batch: int) -> str | None:
    """Why the held-out text cannot be the same; None if it can."""
    text = base.train.validation_batches * base.batch.global_batch
    if text % global_batch == 0:
        return None
    return (
        f"batch.global_batch={global_batch}: must divide the {text} sequences of held-out text that all trials share "
        "(train.validation_batches x batch.global_batch of the base): raise base.train.validation_batches"
    )
