"""The Ultra-Scale Playbook's trials, each model size predicted from the others: peaks of memory, failures, step times.

    python -m benchmarks.prediction_playbook [--table CSV] [--save]

Constants are fitted to trials of other model sizes only. A trial is called safe or refused if its chance to fail is
below or above what the level asks for. Step times include the stalls that docs/prediction.md describes; the order is of
finished trials in each cell (a model on a number of nodes) that has five or more. Below stand a generic learner's rows
(``benchmarks._boosted``): the same trials and the same split, the table's columns, default settings.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import _boosted, _scatter
from benchmarks import _predict_memory as memory
from benchmarks import _table as table
from benchmarks.published import playbook

_BAND = 0.08


def report(path: Path, save: bool) -> None:
    """Print the three tables of the trials in a file."""
    trials = playbook.trials(path)
    found, learned = memory.predicted(trials), _boosted.predicted(trials)
    rows = {"peaks": memory.peak_rows, "calls": memory.call_rows, "order": memory.order_rows}
    titles = {
        "peaks": "Playbook: peak memory of finished trials (bar 8 %)",
        "calls": "Playbook: safe and refused trials (bars at 95 %: 80 % called, 5 % and 5 % wrong)",
        "order": "Playbook: order of step times in each cell (bars: median 0.9, best in the top 10 in 90 %)",
    }
    for name, title in titles.items():
        others = [*_boosted.rows(name, trials, learned), *_boosted.QUOTED.get(name, [])]
        lines = [list(map(str, row)) for row in [*rows[name](trials, found), *others]]
        table.show(f"prediction_playbook_{name}", title, memory.HEADERS[name], lines, save)
    if save:
        ran = ~trials["failed"]
        sizes = {
            str(model): (found.peaks[own] / 2**30, trials["memory_bytes"][own] / 2**30)
            for model in dict.fromkeys(trials["model"].tolist())
            for own in [ran & (trials["model"] == model) & np.isfinite(trials["memory_bytes"])]
        }
        _scatter.save(
            "playbook_memory",
            "Peak memory of the playbook's trials, each size by the others",
            "GiB",
            sizes,
            _BAND,
        )


def main() -> None:
    """Print the three tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--table", type=Path, default=playbook.TRIALS, metavar="CSV")
    given = arguments.parse_args()
    report(given.table, given.save)


if __name__ == "__main__":
    main()
