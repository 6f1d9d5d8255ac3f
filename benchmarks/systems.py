"""Systems of the literature as this project has them, each beside its plainer rival: exactness, bytes, time, verdict.

Each file of ``literature`` says what its systems are, and how they are measured. What has been measured is kept in
``results``, so the benchmark goes on where it was stopped; ``--fresh`` begins anew, ``--only`` measures one system and
takes the others as they are kept, ``--kept`` takes all so and measures nothing.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from benchmarks import _table as table
from benchmarks.literature import HEADER, System, systems


def main() -> None:
    """Measure what is missing, and print the tables."""
    known = systems()
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=16, help="steps of each plan of KARMA")
    arguments.add_argument("--lab-rounds", type=int, default=8, help="runs of each setting in the lab")
    arguments.add_argument("--fresh", action="store_true", help="forget what was measured before")
    which = arguments.add_mutually_exclusive_group()
    which.add_argument("--only", choices=known, help="measure this one alone")
    which.add_argument("--kept", action="store_true", help="measure nothing")
    given = arguments.parse_args()
    chosen = [] if given.kept else [given.only] if given.only else list(known)
    if given.fresh:
        for name in chosen:
            known[name].kept.unlink(missing_ok=True)
    lines = [
        [*system.line(given, name in chosen), _measured_at(system, name in chosen)]
        for name, system in known.items()
        if name in chosen or system.kept.exists()
    ]
    title = "Systems of the literature, beside their rivals"
    words = f"Words of commit {table.commit()}; nothing was measured there: of each row the last column says where."
    where = words if given.kept else ""
    table.show("systems", title, [*HEADER, "measured at"], lines, given.save, where)


def _measured_at(system: System, measured: bool) -> str:
    """The commit that the line's measurements came with, and its day; what is measured now has that of the table."""
    told = "" if measured else table.last_commit(system.kept, *system.more)
    return told or "the commit above"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
