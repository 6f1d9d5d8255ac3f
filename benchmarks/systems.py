"""Systems of the literature as this project has them, each beside its plainer rival: exactness, bytes, time, verdict.

KARMA: plans of activations for 20 budgets (``_out_of_core.py``). SkipPipe: stages left out, planned and not, in the
lab (``_partial_pipeline.py``). What has been measured is kept in ``results``, so the benchmark goes on where it was
stopped; ``--fresh`` begins anew.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from benchmarks import _out_of_core as out_of_core
from benchmarks import _partial_pipeline as partial
from benchmarks import _table as table

HEADER = ["system", "exact", "bytes", "predicted", "beside its rival", "the paper", "verdict"]


def main() -> None:
    """Measure what is missing, and print the tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=16, help="steps of each kind")
    arguments.add_argument("--fresh", action="store_true", help="forget what was measured before")
    given = arguments.parse_args()
    if given.fresh:
        for kept_at in (out_of_core.KEPT, partial.KEPT):
            kept_at.unlink(missing_ok=True)
    kept = out_of_core.run(given.rounds)
    rows, bars = out_of_core.rows(kept)
    rows.append(out_of_core.again_row(kept))
    table.show(out_of_core.NAME, out_of_core.title(kept, bars), out_of_core.HEADER, rows, given.save)
    skipped = partial.run(partial.Size(given.rounds))
    table.show(partial.NAME, partial.title(skipped), partial.HEADER, partial.rows(skipped), given.save)
    systems = [_karma(bars), _skip_pipe(partial.bars(skipped))]
    table.show("systems", "Systems of the literature, beside their rivals", HEADER, systems, given.save)


def _karma(bars: dict[str, int]) -> list[str]:
    every = out_of_core.BUDGETS
    keeps = {name: count == every for name, count in bars.items()}
    good = all(keeps[name] for name in ("within", "equal", "predicted", "not slower"))
    return [
        "KARMA, `memory.budget_gib`",
        f"loss and gradients to the bit: {bars['equal']} of {every}",
        f"never over the budget: {bars['within']} of {every}",
        f"{bars['predicted']} of {every} within 10 %",
        f"best uniform setting that fits: not slower {bars['not slower']}, at least 5 % faster {bars['5 % faster']}",
        "1.52 times the speed of other out-of-core methods (mean of six models)",
        "pays" if good and bars["5 % faster"] >= every / 2 else "does not keep every bar",
    ]


def _skip_pipe(bars: partial.Bars) -> list[str]:
    good, cheap = bars.simulated == bars.kinds, bars.at_seconds <= 0
    return [
        "SkipPipe, `schedule.skip_share`",
        "gradients of a plain model that leaves out the same blocks: to 1e-6, on 2 and 3 stages",
        f"messages of paths alone: counted / by formula {bars.least_bytes:.3f} to {bars.most_bytes:.3f}",
        f"{bars.simulated} of {bars.kinds} within 15 %",
        f"unplanned: {bars.planned.plain()} times as fast; that, which computes less, {bars.less_work.plain()} times "
        f"the full pipeline; loss over the full one's: {bars.at_tokens:+.1%} at equal tokens, {bars.at_seconds:+.1%} "
        f"at equal seconds; {bars.early:+.1%} more with stages left out",
        "up to 55 % shorter iterations; perplexity 7 % worse with half of the model at inference",
        "as described; " + ("pays" if good and cheap else "faster, and learns less in the same time")
        if good
        else "does not keep every bar",
    ]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
