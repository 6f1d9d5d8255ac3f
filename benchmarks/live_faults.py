"""Faults at random moments of live studies: does the run go on, and does it learn what it would have learned?

Goes on from ``benchmarks/results/live_faults.json`` until ``--count`` faults were injected; ``--anew`` begins again.
Each study takes several, drawn by a seed that is printed: ``--seed`` repeats one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks import _fault_campaign as campaign
from benchmarks import _table as table
from benchmarks._fault_checks import Shot
from benchmarks._live_fault_checks import run, untouched
from benchmarks._live_fault_study import KINDS, MOMENTS

FILE = table.RESULTS / "live_faults.json"
COUNT = 100


def main() -> int:
    """Inject, and print the table; 1 if something was wrong."""
    given = campaign.arguments(__doc__, KINDS, COUNT)
    with tempfile.TemporaryDirectory() as scratch:
        expected = untouched(Path(scratch))
    done, good = campaign.campaign(given, FILE, lambda seed, done: _study(seed, given, done, expected))
    _show(done, given.save)
    return int(not good)


def draw(seed: int, kinds: list[str], often: Counter[str], count: int) -> list[tuple[str, str]]:
    """Kinds and moments of one study; those that were injected less often come first."""
    drawn = Random(seed)
    pool = [(kind, moment) for kind in kinds for moment in MOMENTS] * count
    pool.sort(key=lambda each: (often["{} in a {}".format(*each)], drawn.random()))
    chosen = list(dict.fromkeys(pool))[:count]
    drawn.shuffle(chosen)
    return chosen


def _study(
    seed: int, given: argparse.Namespace, done: list[campaign.Kept], expected: dict[int, float]
) -> list[Shot]:
    """As many as are still wanted, ``campaign.PER_STUDY`` at the most; what is left of one that went wrong is kept."""
    count = campaign.PER_STUDY if given.seed is not None else min(campaign.PER_STUDY, given.count - len(done))
    chosen = draw(seed, given.kind, Counter(shot["kind"] for shot in done), count)
    print(f"seed {seed}: {', '.join(map(' in a '.join, chosen))}", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="live-faults-"))
    shots = run(scratch / "study", chosen, seed, expected)
    if any(shot.problems for shot in shots):
        print(f"  what is left of it is in {scratch}", file=sys.stderr, flush=True)
    else:
        shutil.rmtree(scratch)
    return shots


def _show(done: list[campaign.Kept], save: bool) -> None:
    rows = []
    for name, kind in KINDS.items():
        for moment in MOMENTS:
            what = (kind.inject.__doc__ or name).strip().splitlines()[0]
            shots = [shot for shot in done if shot["kind"] == f"{name} in a {moment}"]
            rows.append([what, moment, *campaign.cells(shots)])
    rows.append(["all", "", *campaign.totals(done)])
    where = f"two gloo ranks, {COUNT} wanted; commits {campaign.commits(done)}"
    title = f"Faults at random moments of live studies ({where})"
    table.show("live_faults", title, ["fault", "in a", *campaign.HEADER], rows, save)


if __name__ == "__main__":
    sys.exit(main())
