"""Faults at random moments of live studies: does the run go on, and does it learn what it would have learned?

Goes on from ``benchmarks/results/live_faults.json`` until ``--count`` faults were injected; ``--anew`` begins again.
Each study takes several, drawn by a seed that is printed: ``--seed`` repeats one.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import _table as table
from benchmarks._faults import possible
from benchmarks._live_fault_checks import run, untouched
from benchmarks._live_fault_study import KINDS, MOMENTS

FILE = table.RESULTS / "live_faults.json"
PER_STUDY = 6
COUNT = 100


def main() -> int:
    """Inject, and print the table; 1 if something was wrong."""
    parser = table.parser(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="how many faults in all")
    parser.add_argument("--anew", action="store_true", help="forget what was injected before")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be given again")
    parser.add_argument("--seed", type=int, help="inject into one study, drawn by this seed")
    given = parser.parse_args()
    done: list[dict[str, Any]] = []
    if FILE.exists() and not given.anew:
        done = json.loads(FILE.read_text(encoding="utf-8"))
    before = len(done)
    with tempfile.TemporaryDirectory() as scratch:
        expected = untouched(Path(scratch))
    while len(done) < given.count:
        seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
        done += _study(seed, given.kind or sorted(KINDS.keys() - possible().keys()), done, expected)
        if given.save:
            FILE.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        if given.seed is not None:
            break
    _show(done, given.save)
    return int(any(shot["problems"] for shot in done[before:]))


def draw(seed: int, kinds: list[str], often: Counter[str], count: int) -> list[tuple[str, str]]:
    """Kinds and moments of one study; those that were injected less often come first."""
    drawn = Random(seed)
    pool = [(kind, moment) for kind in kinds for moment in MOMENTS] * count
    pool.sort(key=lambda each: (often["{} in a {}".format(*each)], drawn.random()))
    chosen = list(dict.fromkeys(pool))[:count]
    drawn.shuffle(chosen)
    return chosen


def _study(
    seed: int, kinds: list[str], done: list[dict[str, Any]], expected: dict[int, float]
) -> list[dict[str, Any]]:
    chosen = draw(seed, kinds, Counter(shot["kind"] for shot in done), PER_STUDY)
    print(f"seed {seed}: {', '.join(map(' in a '.join, chosen))}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        shots = run(Path(scratch) / "study", chosen, seed, expected)
    for shot in shots:
        wrong = "".join(f"\n    WRONG: {problem}" for problem in shot.problems)
        endings = ", ".join(shot.endings) or "none"
        print(f"  {shot.seconds:5.1f} s  {shot.words}: {endings}{wrong}", file=sys.stderr, flush=True)
    return [shot.as_dict() | {"seed": seed, "commit": table.commit()} for shot in shots]


def _open(shots: list[dict[str, Any]]) -> int:
    """Problems about which nothing was done: ``since`` in the file says what was."""
    return sum(bool(shot["problems"]) and "since" not in shot for shot in shots)


def _show(done: list[dict[str, Any]], save: bool) -> None:
    rows = []
    for name, kind in KINDS.items():
        for moment in MOMENTS:
            shots = [shot for shot in done if shot["kind"] == f"{name} in a {moment}"]
            endings = Counter(ending for shot in shots for ending in shot["endings"])
            words = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items())) or "none"
            wrong = sum(bool(shot["problems"]) for shot in shots)
            what = (kind.inject.__doc__ or name).strip().splitlines()[0]
            rows.append([what, moment, str(len(shots)), words, str(wrong), str(_open(shots))])
    wrong = sum(bool(shot["problems"]) for shot in done)
    rows.append(["all", "", str(len(done)), "", str(wrong), str(_open(done))])
    commits = ", ".join(dict.fromkeys(shot["commit"] for shot in done))
    title = f"Faults at random moments of live studies (two gloo ranks, {COUNT} wanted; commits {commits})"
    header = ["fault", "in a", "injected", "endings that it cost", "with a problem", "still open"]
    table.show("live_faults", title, header, rows, save)


if __name__ == "__main__":
    sys.exit(main())
