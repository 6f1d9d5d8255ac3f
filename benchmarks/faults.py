"""Faults at random moments of running studies: what was lost, mislabelled or left behind.

Goes on from ``benchmarks/results/faults.json`` until ``--count`` faults were injected; ``--anew`` begins again,
``--kind`` injects one kind only. Each study takes several, drawn by a seed that is printed: ``--seed`` repeats one.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from benchmarks import _fault_campaign as campaign
from benchmarks import _table as table
from benchmarks._fault_checks import Shot, run
from benchmarks._faults import KINDS

FILE = table.RESULTS / "faults.json"
PER_STUDY = campaign.PER_STUDY
COUNT = 200


def main() -> int:
    """Inject, and print the table; 1 if something was wrong."""
    given = campaign.arguments(__doc__, KINDS, COUNT)
    done, good = campaign.campaign(given, FILE, lambda seed, done: _study(seed, given.kind, done))
    _show(done, given.save)
    return int(not good)


def _study(seed: int, kinds: list[str], done: list[campaign.Kept]) -> list[Shot]:
    """Faults of one study; kinds that were injected less often come first."""
    drawn = Random(seed)
    often = Counter(shot["kind"] for shot in done)
    pool = sorted(kinds * PER_STUDY, key=lambda kind: (often[kind], drawn.random()))
    chosen = list(dict.fromkeys(pool))[:PER_STUDY] if len(kinds) >= PER_STUDY else pool[:PER_STUDY]
    drawn.shuffle(chosen)
    print(f"seed {seed}: {', '.join(chosen)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        return run(Path(scratch), chosen, seed)


def _show(done: list[campaign.Kept], save: bool) -> None:
    rows = []
    for kind, inject in KINDS.items():
        what = (inject.__doc__ or kind).strip().splitlines()[0]
        rows.append([what, *campaign.cells([shot for shot in done if shot["kind"] == kind])])
    rows.append(["all", *campaign.totals(done)])
    where = f"two gloo ranks, {COUNT} wanted; commits {campaign.commits(done)}"
    title = f"Faults at random moments of running studies ({where})"
    table.show("faults", title, ["fault", *campaign.HEADER], rows, save)


if __name__ == "__main__":
    sys.exit(main())
