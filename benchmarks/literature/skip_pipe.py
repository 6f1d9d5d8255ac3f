"""SkipPipe: stages left out, planned and not (``_partial_pipeline.py``), in the lab."""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks import _partial_pipeline as partial
from benchmarks import _table as table
from benchmarks.literature import System


def _partial_line(given: Namespace, measures: bool) -> list[str]:
    kept = partial.run(partial.Size(given.rounds)) if measures else json.loads(partial.KEPT.read_text())
    if measures:
        table.show(partial.NAME, partial.title(kept), partial.HEADER, partial.rows(kept), given.save)
    return _skip_pipe(partial.bars(kept))


def _skip_pipe(bars: partial.Bars) -> list[str]:
    good, cheap = bars.simulated == bars.kinds, bars.at_seconds <= 0
    learns = "learns " + ("more" if cheap else "less") + " than the full one in the same time"
    rival = "a model of as many layers as it computes learns " + ("more" if bars.smaller_loss < 0 else "less")
    return [
        "SkipPipe, `schedule.skip_share`",
        "gradients of a plain model that leaves out the same blocks: to 1e-6, on 2 and 3 stages",
        f"messages of paths alone: counted / by formula {bars.least_bytes:.3f} to {bars.most_bytes:.3f}",
        f"{bars.simulated} of {bars.kinds} within 15 %",
        f"unplanned: {bars.planned.plain()} times as fast; that, which computes less, {bars.less_work.plain()} times "
        f"the full pipeline (A/A {bars.again.plain()}); planned over full, time: {bars.shorter.plain()}, loss: "
        f"{bars.at_tokens:+.1%} at equal "
        f"tokens, {bars.at_seconds:+.1%} at equal seconds; {bars.early:+.1%} more with stages left out; a model of 8 "
        f"layers takes {bars.smaller.plain()} of its time, its loss at equal seconds is {bars.smaller_loss:+.1%}",
        "up to 55 % shorter iterations; perplexity 7 % worse with half of the model at inference",
        f"{1 - bars.shorter.middle:.0%} shorter here; {learns}; {rival}"
        if good
        else "does not keep every bar",
    ]


SYSTEMS = {"partial": System(partial.KEPT, _partial_line)}
