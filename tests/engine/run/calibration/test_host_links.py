"""Links between hosts: islands from rates alone, and files that hold nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run.calibration import host_links
from engine.run.calibration.host_links import islands_of
from tests.support.engine.calibrations import links_of_islands


def rates(islands: list[int], near: float = 10.0, far: float = 1.0) -> list[list[float]]:
    """[from][to] of hosts on these islands."""
    count = len(islands)
    return [
        [0.0 if one == to else near if islands[one] == islands[to] else far for to in range(count)]
        for one in range(count)
    ]


@pytest.mark.parametrize(
    "islands", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 1, 0], [0, 0, 0], [0, 1, 1, 2, 2, 1]]
)
def test_islands_are_found_in_any_order(islands: list[int]) -> None:
    assert islands_of(rates(islands)) == tuple(islands)


def test_a_host_that_is_slow_to_all_has_an_island_of_its_own() -> None:
    table = rates([0, 0, 0])
    for other in range(2):
        table[2][other] = table[other][2] = 2.0
    assert islands_of(table) == (0, 0, 1)


def test_the_slower_way_counts() -> None:
    table = rates([0, 0, 0])
    table[0][1] = table[2][1] = 1.0
    assert islands_of(table) == (0, 1, 0)


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    links = links_of_islands([0, 0, 1, 1])
    path = host_links.save(tmp_path, links)
    assert host_links.stored_links(tmp_path) == {links.key: links}
    assert host_links.read_links(path) == links
    assert json.loads(path.read_text())["islands"] == [0, 0, 1, 1]
    (path.parent / "damaged.json").write_text("{")
    assert host_links.stored_links(tmp_path) == {links.key: links}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format 9 is not 1"),
        ({"hosts": ["a"]}, "one row and one column for each of 1 hosts"),
        ({"bytes_per_second": [[0.0, 0.0], [1.0, 0.0]]}, "is not above zero"),
        ({"island_bytes_per_second": []}, "0 rates of islands where there are 1"),
        ({"backend": 3}, "cannot be read"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps(links_of_islands([0, 0]).as_dict() | change))
    with pytest.raises(InputError, match=message):
        host_links.read_links(path)
