"""What holds for any trainer: bars and numbers in what it prints, and threads on processor cores."""

from __future__ import annotations

import os
from dataclasses import replace

from tuning.spec.trainers.facts import Argument, Value, line
from tuning.spec.trainers.invocation import Invocation

#: A number of a log line.
NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
#: A bar of tqdm without a title of its own, as trainers of Hugging Face draw it.
BAR = line(r"^\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \[")
#: tqdm takes its defaults from variables of this name; else a bar is drawn ten times a second at most.
EVERY_STEP = {"TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}


_VARIABLE = "OMP_NUM_THREADS"


def _threads(command: Invocation) -> int | None:
    """torchrun gives ranks one thread each where nobody said how many."""
    threads = command.variables.get(_VARIABLE) or os.environ.get(_VARIABLE, "")
    return int(threads) if threads.isdigit() and int(threads) else 1 if command.ranks > 1 else None


def _with_threads(command: Invocation, value: Value) -> Invocation:
    return replace(command, variables=dict(command.variables) | {_VARIABLE: str(value)})


def _offered_threads(command: Invocation, cores: int) -> list[int]:
    return [2**power for power in range(max(1, cores // command.ranks).bit_length())]


THREADS = Argument(
    "omp_threads",
    "threads of a rank on processor cores",
    _threads,
    _with_threads,
    _offered_threads,
)
