"""Which tests a run has: all in a few of them, those that are short always, and no more long ones than fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.support import drawn


class Item:
    """What pytest collects, as far as it is asked."""

    def __init__(self, nodeid: str, *markers: Any) -> None:
        self.nodeid, self.markers = nodeid, {marker.name: marker for marker in markers}

    def get_closest_marker(self, name: str) -> Any:
        return self.markers.get(name)

    def add_marker(self, marker: Any) -> None:
        self.markers[marker.name] = marker.mark


def kept(items: Sequence[Item], only_slow: bool = False) -> list[str]:
    drawn.leave_out(cast(Sequence[pytest.Item], items), only_slow)
    return [item.nodeid for item in items if ("slow" in item.markers) == only_slow]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "known_seconds", lambda: {"a.py::long": 10.0, "b.py::longer": 40.0})
    monkeypatch.setattr(drawn, "BUDGET_SECONDS", 100.0)


def all_items() -> list[Item]:
    names = [f"a.py::long[{case}]" for case in range(20)] + ["b.py::longer"]
    return [Item(name) for name in [*names, *(f"c.py::short[{case}]" for case in range(5))]]


def test_short_ones_always_run_and_long_ones_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()
    for seed in range(200):
        monkeypatch.setattr(drawn, "SEED", seed)
        found = kept(all_items())
        assert found == kept(all_items()), "the same seed keeps the same ones"
        assert sum(name.startswith("c") for name in found) == 5
        assert "b.py::longer" in found, "one of each test comes before a second case of any"
        assert sum(name.startswith("a") for name in found) == 6
        seen.update(found)
    assert all(seen[item.nodeid] > 0 for item in all_items()), "each one has its turn"


def test_a_few_files_run_whole() -> None:
    few = [item for item in all_items() if item.nodeid in ("a.py::long[3]", "a.py::long[4]", "b.py::longer")]
    assert len(kept(few)) == 3


def test_the_slow_ones_are_all_of_them() -> None:
    items = [
        *all_items(),
        Item("d.py::cases[0]", pytest.mark.drawn(1).mark),
        Item("e.py::slow", pytest.mark.slow.mark),
    ]
    assert len(kept(items, only_slow=True)) == 23


def test_of_a_family_so_many_are_drawn() -> None:
    items = [Item(f"d.py::cases[{case}]", pytest.mark.drawn(2).mark) for case in range(6)]
    family = [Item(f"d.py::other{name}", pytest.mark.drawn(1, of="others").mark) for name in "xyz"]
    found = kept([*items, *family])
    assert sum("cases" in name for name in found) == 2 and sum("other" in name for name in found) == 1
