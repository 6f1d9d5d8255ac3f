"""Random legal configurations over all knobs at once: do they run, learn as one process does, and send as formulas say?

    python -m benchmarks.random_points [--points 200] [--save]

Each point turns two to ten knobs of a small decoder, dense or with experts, on 2 to 4 ranks. Where nothing is lossy its
losses are held against those of one process with the same settings of learning; where each call has a formula the calls
of a step on every rank are held against it. With ``--save`` each point is kept in ``results/random_points.json``, so
the benchmark goes on where it was stopped. Points are drawn by their numbers.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.session import Session
from tests.support.engine import random_points

KEPT = table.RESULTS / "random_points.json"


def measure(session: Session, number: int) -> dict[str, Any]:
    """What one point came to."""
    config = random_points.draw(random.Random(number))
    told: dict[str, Any] = {
        "changes": random_points.changes(config),
        "bound": random_points.loss_bound(config),
    }
    try:
        found = random_points.check(session, config)
    except AssertionError as error:
        return told | {"problem": str(error)}
    return told | {"loss_difference": found.loss_difference, "calls": found.calls}


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """One row for each thing that was held."""
    points = list(kept.values())
    bad = [one for one in points if "problem" in one]
    alone = [one for one in points if one.get("loss_difference") is not None]
    calls = [one["calls"] for one in points if one.get("calls") is not None]
    knobs = {key for one in points for key in one["changes"]}

    def near(bound: float) -> list[str]:
        found = [one["loss_difference"] for one in alone if one["bound"] == bound]
        return [f"{len(found):,}", f"at most {max(found, default=0.0):.1e} apart, {bound:g} allowed"]

    held = f"{len(points) - len(bad):,} of {len(points):,}"
    return [
        ["run without a crash, with finite losses, and all below", held, ""],
        ["losses of one process, fp32", *near(random_points.LOSS)],
        ["losses of one process, Muon, whose products are in bf16", *near(random_points.LOSS_MUON)],
        ["losses of one process, bf16", *near(random_points.LOSS_BF16)],
        ["calls as by formula, on every rank", f"{len(calls):,}", f"{sum(calls):,} calls of one step"],
        ["knobs that some point turns", f"{len(knobs):,}", ""],
    ]


def main() -> None:
    """Measure what is missing; print."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--points", type=int, default=200)
    asked = arguments.parse_args()
    kept = table.kept(KEPT) if asked.save else {}
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        for number in range(asked.points):
            if str(number) in kept:
                continue
            kept[str(number)] = measure(session, number)
            if asked.save:
                table.keep(KEPT, kept)
    for name, one in kept.items():
        if "problem" in one:
            print(f"point {name}: {one['changes']}: {one['problem']}")
    title = f"{len(kept):,} random legal configurations over all knobs at once"
    table.show("random_points", title, ["what", "points", ""], rows(kept), asked.save)


if __name__ == "__main__":
    main()
