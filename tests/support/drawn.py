"""Of a test with many cases, some in every run and others in the next; the slow tests are all of them."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

MARKER = "drawn"
_VARIABLE = "WORKBENCH_TEST_SEED"
#: The same number draws the same cases again; processes that share the tests of one run have it from the first.
SEED = int(os.environ.get(_VARIABLE) or random.SystemRandom().randrange(10_000))
os.environ[_VARIABLE] = str(SEED)


def leave_out(items: Iterable[pytest.Item], only_slow: bool) -> None:
    """Mark those as slow that are not drawn: ``@pytest.mark.drawn(3)`` keeps three cases of a test.

    ``@pytest.mark.drawn(1, of="traces")`` on several tests keeps one of them all.
    """
    families = defaultdict[tuple[str, int], list[pytest.Item]](list)
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            name = marker.kwargs.get("of") or item.nodeid.split("[")[0]
            families[name, marker.args[0]].append(item)
    for (name, count), family in families.items():
        kept = [] if only_slow else random.Random(f"{SEED} {name}").sample(family, min(count, len(family)))
        for item in family:
            if item not in kept:
                item.add_marker(pytest.mark.slow)
