"""Faults at random moments of running studies: what was lost, mislabelled or left behind.

Goes on from ``benchmarks/results/faults.json`` until ``--count`` faults were injected; ``--anew`` begins again,
``--kind`` injects one kind only. Each study takes several, drawn by a seed that is printed: ``--seed`` repeats one.
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
from benchmarks._fault_checks import run
from benchmarks._faults import KINDS, possible

FILE = table.RESULTS / "faults.json"
PER_STUDY = 6
COUNT = 200


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
    while len(done) < given.count:
        seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
        done += _study(seed, given.kind or sorted(KINDS.keys() - possible().keys()), done)
        if given.save:
            FILE.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        if given.seed is not None:
            break
    _show(done, given.save)
    return int(any(shot["problems"] for shot in done[before:]))


def _study(seed: int, kinds: list[str], done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Faults of one study; kinds that were injected less often come first."""
    drawn = Random(seed)
    often = Counter(shot["kind"] for shot in done)
    pool = sorted(kinds * PER_STUDY, key=lambda kind: (often[kind], drawn.random()))
    chosen = list(dict.fromkeys(pool))[:PER_STUDY] if len(kinds) >= PER_STUDY else pool[:PER_STUDY]
    drawn.shuffle(chosen)
    print(f"seed {seed}: {', '.join(chosen)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        shots = run(Path(scratch), chosen, seed)
    for shot in shots:
        wrong = "".join(f"\n    WRONG: {problem}" for problem in shot.problems)
        print(
            f"  {shot.seconds:5.1f} s  {shot.words}: {', '.join(shot.endings) or 'none'}{wrong}",
            file=sys.stderr,
            flush=True,
        )
    return [shot.as_dict() | {"seed": seed, "commit": table.commit()} for shot in shots]


def _open(shots: list[dict[str, Any]]) -> int:
    """Problems about which nothing was done: ``since`` in the file says what was."""
    return sum(bool(shot["problems"]) and "since" not in shot for shot in shots)


def _show(done: list[dict[str, Any]], save: bool) -> None:
    rows = []
    for kind, inject in KINDS.items():
        shots = [shot for shot in done if shot["kind"] == kind]
        endings = Counter(ending for shot in shots for ending in shot["endings"])
        wrong = sum(bool(shot["problems"]) for shot in shots)
        words = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items())) or "none"
        what = (inject.__doc__ or kind).strip().splitlines()[0]
        rows.append([what, str(len(shots)), words, str(wrong), str(_open(shots))])
    wrong = sum(bool(shot["problems"]) for shot in done)
    rows.append(["all", str(len(done)), "", str(wrong), str(_open(done))])
    commits = ", ".join(dict.fromkeys(shot["commit"] for shot in done))
    title = f"Faults at random moments of running studies (two gloo ranks, {COUNT} wanted; commits {commits})"
    table.show(
        "faults",
        title,
        ["fault", "injected", "endings that it cost", "with a problem", "still open"],
        rows,
        save,
    )


if __name__ == "__main__":
    sys.exit(main())
