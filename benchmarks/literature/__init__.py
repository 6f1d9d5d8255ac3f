"""Systems of the literature, in the order of these files: each tells its own name, what is kept of it, and its line.

``SYSTEMS`` of a file has an entry for each of its systems; a new file is found by itself.
"""

from __future__ import annotations

import pkgutil
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HEADER = ["system", "exact", "bytes", "predicted", "beside its rival", "the paper", "verdict"]


class System(NamedTuple):
    """Where its measurements are kept, and its line; it is measured first, and its own table printed, if so asked.
    ``more`` is what else its line is told of.
    """

    kept: Path
    line: Callable[[Namespace, bool], list[str]]
    more: tuple[Path, ...] = ()


def systems() -> dict[str, System]:
    """By the name that ``--only`` takes."""
    found: dict[str, System] = {}
    for name in sorted(one.name for one in pkgutil.iter_modules(__path__)):
        found |= import_module(f"{__name__}.{name}").SYSTEMS
    return found
