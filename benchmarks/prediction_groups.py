"""Predictions with whole groups of rows left out: the worst group beside the mean, for every shipped table.

    python -m benchmarks.prediction_groups [--only vTrain playbook ..] [--save]

Each row is predicted by constants that were fitted without its group: its model size, node count, tp width, machine,
format of numbers, or size with node count. A printed range is made of the errors of other groups, each of them left
out in its turn. Regret is how much slower than the best of a cell the layout is that was expected to be
fastest, stalls counted by their chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import _left_out as left_out
from benchmarks import _regret as regret
from benchmarks import _table as table
from benchmarks._left_out import LeftOut

HEADER = (
    "table", "left out", "groups", "rows", "mean error", "median", "worst group", "its mean error",
    "in the 90 % range", "least of a group", "median width",
)  # fmt: skip
#: Groups of fewer rows say nothing of coverage.
_FEWEST = 5


def line(one: LeftOut) -> list[str]:
    """A line of the table."""
    names = np.unique(one.groups)
    errors = {name: float(one.error[one.groups == name].mean()) for name in names}
    worst = max(errors, key=lambda name: errors[name])
    covers = [
        float(one.inside[own].mean())
        for name in names
        for own in [one.groups == name]
        if own.sum() >= _FEWEST
    ]
    return [
        one.table, one.way, f"{len(names)}", f"{len(one.error):,}", f"{one.error.mean():.1%}",
        f"{np.median(one.error):.1%}", str(worst), f"{errors[worst]:.1%}", f"{one.inside.mean():.0%}",
        f"{min(covers):.0%}" if covers else "", f"{np.median(one.high / one.low):.2f}",
    ]  # fmt: skip


def without_stalls(one: LeftOut) -> LeftOut:
    """Rows that did not stall, beside what is predicted of one that does not."""
    usual = one.take(one.usual)
    return usual._replace(table=f"{one.table}, did not stall", predicted=usual.fast)


def pooled(every: Sequence[LeftOut]) -> list[str]:
    """Coverage of all ranges, each table by one way."""
    inside = np.concatenate([one.inside for one in every])
    width = np.concatenate([one.high / one.low for one in every])
    cells = ["all", f"{len(every)} splits", "", f"{len(inside):,}", "", "", "", ""]
    return [*cells, f"{inside.mean():.0%}", "", f"{np.median(width):.2f}"]


def lines(found: Sequence[LeftOut]) -> Iterator[list[str]]:
    """All tables; the playbook's besides without its stalls."""
    for one in found:
        yield line(one)
        if one.table == "playbook":
            yield line(without_stalls(one))
    yield pooled(found)


def main() -> None:
    """Print the tables."""
    parser = table.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="tables whose name holds one of these")
    given = parser.parse_args()

    def asked(name: str) -> bool:
        return not given.only or any(part in name for part in given.only)

    found = [one for each in left_out.tables() if asked(each.name) for one in left_out.left_out(each)]
    trials = list(left_out.playbook_left_out()) if asked("playbook") else []
    title = "Step times with whole groups of rows left out"
    table.show("prediction_groups", title, HEADER, list(lines([*found, *trials])), given.save)
    if trials:
        title = "Playbook: how much slower than the best of its cell the layout is that was expected to be fastest"
        table.show("prediction_regret", title, regret.HEADER, list(regret.lines(trials)), given.save)


if __name__ == "__main__":
    main()
