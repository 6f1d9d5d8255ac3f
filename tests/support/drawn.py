"""Of what takes long, some in every run and other parts in the next; the slow tests are all of it."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

MARKER = "drawn"
_VARIABLE = "WORKBENCH_TEST_SEED"
#: The same number draws the same cases again; processes that share the tests of one run have it from the first.
SEED = int(os.environ.get(_VARIABLE) or random.SystemRandom().randrange(10_000))
os.environ[_VARIABLE] = str(SEED)

#: Seconds of a case of a test, as they were measured (``python -m tests.seconds``); what is not listed takes less.
SECONDS = Path(__file__).with_name("seconds.json")
#: All that was selected may take so long in one process, by those seconds; of what is listed some is left out else.
BUDGET_SECONDS = 900.0


def leave_out(items: Sequence[pytest.Item], only_slow: bool) -> None:
    """Mark those as slow that are not drawn: ``@pytest.mark.drawn(3)`` keeps three cases of a test.

    ``@pytest.mark.drawn(1, of="traces")`` on several tests keeps one of them all. Of the others that take long so many
    are kept as fit into ``BUDGET_SECONDS``, one case of each test before a second one of any.
    """
    families = defaultdict[tuple[str, int], list[pytest.Item]](list)
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            name = marker.kwargs.get("of") or _test(item)
            families[name, marker.args[0]].append(item)
    for (name, count), family in families.items():
        kept = [] if only_slow else random.Random(f"{SEED} {name}").sample(family, min(count, len(family)))
        _mark(item for item in family if item not in kept)
    seconds = known_seconds()
    left = [item for item in items if item.get_closest_marker("slow") is None and _test(item) in seconds]
    _mark(left if only_slow else _beyond_budget(left, seconds))


def known_seconds() -> dict[str, float]:
    """By the name of a test without its case."""
    found: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    return found


def _beyond_budget(items: Sequence[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    shuffled, turns = list(items), defaultdict[str, int](int)
    random.Random(SEED).shuffle(shuffled)
    order = list[tuple[int, int, pytest.Item]]()
    for place, item in enumerate(shuffled):
        order.append((turns[_test(item)], place, item))
        turns[_test(item)] += 1
    spent, beyond = 0.0, list[pytest.Item]()
    for _, _, item in sorted(order, key=lambda one: one[:2]):
        spent += seconds[_test(item)]
        if spent > BUDGET_SECONDS:
            beyond.append(item)
    return beyond


def _mark(items: Iterable[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.slow)


def _test(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]
