"""Large batches and budgets of seconds, as ``benchmarks.large_batch`` measured them; it has options of its own."""

from __future__ import annotations

from argparse import Namespace

from benchmarks import large_batch
from benchmarks.literature import System

#: As many seeds, steps and seconds as that benchmark has by itself.
_SEEDS, _STEPS, _SECONDS = 3, 960, 15.0


_NAME = "large batches, Cramming's budget: `train.seconds`, `loss_at_seconds`, LARS, LAMB"


def _line(given: Namespace, measures: bool) -> list[str]:
    try:
        return _told(large_batch.Runs(measures))
    except LookupError:
        return [_NAME, *["not measured yet"] * 6]


def _told(runs: large_batch.Runs) -> list[str]:
    plain, *others = large_batch.recipes(runs, _SEEDS, _STEPS)
    rival, learned = large_batch.equal_time(runs, _SEEDS, _SECONDS)
    ends = large_batch.budget(runs, _SEEDS, _SECONDS)
    told = "; ".join(f"{row[0]}: {row[2]}" for row in others)
    return [
        _NAME,
        "optimizers and ramps equal plain loops (tests)",
        "none of their own",
        "; ".join(f"{row[0]}: {row[1]}, {row[2]}" for row in ends),
        f"{plain[0]}; {told}; {learned[0]}, over {rival[0]}: {learned[2]}",
        "large batches: the same accuracy of images at 8,192 with warm-up and a rate in proportion; Cramming: near "
        "BERT's GLUE after a day on one GPU",
        f"in equal time {learned[3]}"
        + ("; no recipe is within 2 % here" if all("not within" in row[3] for row in others[1:]) else "")
        + "; Cramming's own study: `closing_cramming.md`",
    ]


SYSTEMS = {"large_batches": System(large_batch.KEPT, _line)}
