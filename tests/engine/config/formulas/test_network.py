"""Shapes of a lab: from a configuration, in a namespace's name, in words, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.errors import InputError, LayoutError
from engine.config.formulas.network import MAX_ISLANDS, Shape, shape_of
from engine.config.run_config import parse
from engine.config.validation import rules
from engine.launch.lab import lab
from tests.support.engine.shapes import even_shape


def shape(**values: Any) -> Shape | None:
    return shape_of(parse({"lab": values}).lab)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, None),
        ({"hosts": 3}, Shape((3,), (0,))),
        ({"hosts": 4, "rate_mbit": 100.0}, Shape((4,), (100_000,))),
        (
            {"hosts": 4, "islands": 2, "rate_mbit": 1000.0, "between_mbit": 20.0},
            Shape((2, 2), (1_000_000,) * 2, 20_000),
        ),
        ({"islands": [1, 3], "rates_mbit": [None, 12.5]}, Shape((1, 3), (0, 12_500))),
        ({"hosts": 4, "islands": [1, 3]}, Shape((1, 3), (0, 0))),
        ({"islands": [2, 2], "inside_mbit": 400.0}, Shape((2, 2), (0, 0), 0, 400_000)),
    ],
)
def test_what_a_configuration_asks_for(values: dict[str, Any], found: Shape | None) -> None:
    assert shape(**values) == found


def test_hosts_are_counted_through_and_ranks_that_follow_each_other_share_one() -> None:
    two = Shape((1, 2), (10_000, 0), 20_000)
    assert [two.island_of(host) for host in range(3)] == [0, 1, 1]
    assert [two.hosts_of(island) for island in range(2)] == [[0], [1, 2]]
    assert [two.rate_kbit(host) for host in range(3)] == [10_000, 0, 0]
    assert two.rank_hosts(6) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "one",
    [
        even_shape(2),
        even_shape(250, 10_000),
        Shape((2, 3), (10_000, 0), 20_000),
        Shape((1, 1), (0, 0)),
        Shape((1, 2), (0, 0), 0, 50_000),
    ],
)
def test_a_namespaces_name_tells_the_lab(one: Shape) -> None:
    made = lab.make_process_lab(one)
    names = [made.switch, *made.namespaces, *([made.core] if made.core else [])]
    assert [lab.from_namespace(name) for name in names] == [made] * len(names)
    assert len(set(names)) == one.hosts + 1 + (len(one.islands) > 1)


def test_the_longest_name_is_a_name_of_a_file() -> None:
    islands = (100, *[10] * (MAX_ISLANDS - 1))
    largest = lab.Lab(
        Shape(islands, (10_000_000,) * MAX_ISLANDS, 10_000_000, 10_000_000), 4_194_304, 10**10, 999
    )
    assert len(largest.switch) <= 255
    assert lab.from_namespace(largest.switch) == largest


@pytest.mark.parametrize(
    "name", ["workbench-lab-1-2-3-2-switch", "workbench-lab-1-2-3-x-0", "other", "workbench-lab-1-2-3-2x0+-0"]
)
def test_other_names_are_nobodys(name: str) -> None:
    assert lab.from_namespace(name) is None


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (even_shape(2), "2 hosts, links not limited"),
        (even_shape(2, 1000), "2 hosts, links of 1,000 Mbit/s"),
        (
            Shape((2, 2), (1_000_000,) * 2, 20_000),
            "4 hosts in islands of 2 and 2, links of 1,000 Mbit/s, 20 Mbit/s between islands",
        ),
        (
            Shape((1, 1, 2), (100_000, 0, 12_500)),
            "4 hosts in islands of 1, 1 and 2, links of 100 Mbit/s, not limited and 12.5 Mbit/s, "
            "not limited between islands",
        ),
    ],
)  # fmt: skip
def test_a_shape_in_words(one: Shape, words: str) -> None:
    assert str(one) == words


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        ({"islands": 2}, "lab.islands", "set lab.hosts"),
        ({"between_mbit": 10.0}, "lab.between_mbit", "set lab.hosts"),
        ({"rates_mbit": [10.0, 20.0]}, "lab.rates_mbit", "set lab.hosts"),
        ({"hosts": 4, "islands": 3}, "lab.islands", "legal: 2 or 4"),
        ({"hosts": 5, "islands": 3}, "lab.islands", "legal: 5"),
        ({"hosts": 17, "islands": 2}, "lab.islands", "cannot be split evenly"),
        ({"hosts": 4, "islands": [2, 3]}, "lab.islands", "5 hosts, lab.hosts is 4"),
        ({"islands": [200, 100]}, "lab.islands", "250 are the most"),
        ({"hosts": 4, "islands": 2, "rates_mbit": [10.0, 20.0, 30.0]}, "lab.rates_mbit", "each of the 2 islands"),
        ({"hosts": 4, "rates_mbit": [10.0, 20.0]}, "lab.rates_mbit", "lab.rate_mbit instead"),
        ({"hosts": 4, "islands": 2, "rate_mbit": 10.0, "rates_mbit": [10.0, 20.0]}, "lab.rates_mbit", "leave out one"),
        ({"hosts": 4, "between_mbit": 10.0}, "lab.between_mbit", "set lab.islands"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(values: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(LayoutError, match=remedy) as refused:
        shape(**values)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"hosts": 4, "islands": 1},
        {"islands": [4]},
        {"islands": [0, 2]},
        {"islands": [1] * 17},
        {"islands": [2, 2], "between_mbit": 9.0},
        {"islands": [2, 2], "rates_mbit": [10.0, 20_000.0]},
    ],
)
def test_what_is_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="lab"):
        parse({"lab": values})


def test_islands_by_list_have_to_divide_the_ranks() -> None:
    with pytest.raises(LayoutError, match="nearest legal") as refused:
        rules.check(parse({"lab": {"islands": [1, 2]}, "parallel": {"dp": 4}}))
    assert refused.value.field == "lab.islands"
