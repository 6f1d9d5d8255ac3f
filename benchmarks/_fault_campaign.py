"""What ``faults.py`` and ``live_faults.py`` share: going on where a campaign stopped, and the rows of its table."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from benchmarks._fault_checks import Shot
from benchmarks._faults import possible

PER_STUDY = 6
#: A shot as its file keeps it.
Kept = dict[str, Any]
HEADER = ["injected", "endings that it cost", "with a problem", "still open"]


def arguments(description: str | None, kinds: Iterable[str], count: int) -> argparse.Namespace:
    """What was asked for on the command line; ``kinds`` without those that this machine cannot inject by default."""
    parser = table.parser(description)
    parser.add_argument("--count", type=int, default=count, help="how many faults in all")
    parser.add_argument("--anew", action="store_true", help="forget what was injected before")
    parser.add_argument(
        "--kind", choices=list(kinds), action="append", help="only this kind; may be given again"
    )
    parser.add_argument("--seed", type=int, help="inject into one study, drawn by this seed")
    given = parser.parse_args()
    given.kind = given.kind or sorted(set(kinds) - possible().keys())
    return given


def campaign(
    given: argparse.Namespace, file: Path, study: Callable[[int, list[Kept]], list[Shot]]
) -> tuple[list[Kept], bool]:
    """Studies until enough faults were injected, those of ``file`` included; and whether nothing new was wrong.

    ``study`` injects into one, given its seed and what was injected before.
    """
    done: list[Kept] = []
    if file.exists() and not given.anew:
        done = json.loads(file.read_text(encoding="utf-8"))
    before = len(done)
    while len(done) < given.count:
        seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
        shots = study(seed, done)
        for shot in shots:
            _tell(shot)
        done += [shot.as_dict() | {"seed": seed, "commit": table.commit()} for shot in shots]
        if given.save:
            file.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        if given.seed is not None:
            break
    return done, not any(shot["problems"] for shot in done[before:])


def _tell(shot: Shot) -> None:
    wrong = "".join(f"\n    WRONG: {problem}" for problem in shot.problems)
    endings = ", ".join(shot.endings) or "none"
    print(f"  {shot.seconds:5.1f} s  {shot.words}: {endings}{wrong}", file=sys.stderr, flush=True)


def cells(shots: list[Kept]) -> list[str]:
    """What stands under ``HEADER`` for these."""
    endings = Counter(ending for shot in shots for ending in shot["endings"])
    words = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items())) or "none"
    wrong = sum(bool(shot["problems"]) for shot in shots)
    # ``since`` in the file says what was done about a problem.
    still_open = sum(bool(shot["problems"]) and "since" not in shot for shot in shots)
    return [str(len(shots)), words, str(wrong), str(still_open)]


def totals(done: list[Kept]) -> list[str]:
    """The same for all of them, without their endings."""
    return [each if number != 1 else "" for number, each in enumerate(cells(done))]


def commits(done: list[Kept]) -> str:
    """Those on which faults were injected, oldest first."""
    return ", ".join(dict.fromkeys(shot["commit"] for shot in done))
