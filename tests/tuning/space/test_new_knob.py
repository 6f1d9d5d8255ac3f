"""A knob is its field and one entry: a made-up one is offered, put to rest, drawn, named, counted, shown, kept out of
exact runs, and turned while a run goes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.knobs.catalogue import (
    ACTIVATIONS,
    KNOBS,
    KnobFacts,
    acts,
    arithmetic,
    exact_changes,
    lossy,
)
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes
from tests.support.runs import small
from tuning.space import labels
from tuning.space.knobs import default_space, offered_space
from tuning.spec.study_file import parse
from workbench.pages.study import new_knobs
from workbench.text import words

#: A field that has no entry; here it acts on several pipeline stages alone.
KEY = "checkpoint.keep"
ENTRY = KnobFacts(
    "Copies on the shelf",
    "copies",
    "copies",
    named_anyway=True,
    acts=lambda now: bool(now["parallel.pp"] > 1),
    at_rest=3,
    plain=3,
    exact=3,
    offered=lambda search: [3, 4, 5] if search.ranks > 1 else None,
    usual=lambda search: search.ranks > 2,
    live=ACTIVATIONS,
)
BASE: dict[str, Any] = {"batch": {"global_batch": 8, "micro_batch": 1}}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOBS, KEY, ENTRY)


def test_without_its_entry_it_acts_under_its_key_and_is_decided_at_the_start() -> None:
    config = small()
    assert acts(KEY, config.flat())
    assert (new_knobs.title(KEY), words.short(KEY)) == (KEY, "keep")
    assert KEY not in offered_space(config, 4)
    assert lossy({KEY: 5}) == {}
    with pytest.raises(InputError, match="is decided when a run starts"):
        live_changes.change_config(config, {KEY: 5})


@pytest.mark.usefixtures("made_up")
def test_it_is_offered_where_it_says_so_and_usual_where_it_says_so() -> None:
    config = RunConfig()
    assert offered_space(config, 2)[KEY] == [3, 4, 5]
    assert [KEY in default_space(config, ranks) for ranks in (2, 4)] == [False, True]
    assert KEY not in offered_space(config, 1)


@pytest.mark.usefixtures("made_up")
def test_where_it_does_nothing_it_rests_and_else_it_is_drawn_named_and_counted() -> None:
    space = parse(
        {"name": "new", "ranks": 2, "base": BASE, "space": {"parallel.pp": [1, 2], KEY: [3, 4, 5]}}
    ).search_space
    drawn = [space.random_point(Random(seed), set()) for seed in range(60)]
    flat = {(point["parallel.pp"], point[KEY]) for point in drawn if point is not None}
    assert flat == {(1, 3), (2, 3), (2, 4), (2, 5)}

    told = {copies: space.point({"parallel.pp": 2, KEY: copies}) for copies in (3, 5)}
    assert "copies=5" in labels.label(space, told[5])
    assert "copies" not in labels.label(space, space.point({"parallel.pp": 1, KEY: 5}))
    assert labels.complexity(space, told[5]) == labels.complexity(space, told[3]) + 1


@pytest.mark.usefixtures("made_up")
def test_its_names_are_on_form_and_table() -> None:
    assert (new_knobs.title(KEY), words.short(KEY)) == ("Copies on the shelf", "copies")


@pytest.mark.usefixtures("made_up")
def test_all_but_one_value_lose_something() -> None:
    assert lossy({KEY: 5}) == {KEY: 5}
    assert lossy({KEY: 3}) == {}
    assert exact_changes({KEY: 5}, {KEY: 3}) == {KEY: 3}


def test_outside_arithmetic_it_may_differ_from_the_exact_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "memory.shelf"
    assert arithmetic({key: 1}) == {key: 1}
    monkeypatch.setitem(KNOBS, key, KnobFacts(outside_arithmetic=True))
    assert arithmetic({key: 1}) == {}
    waits = ("train.timeout_seconds", "train.step_timeout_seconds", "train.validate_every")
    assert arithmetic(dict.fromkeys((*waits, "data.ahead", "parallel.world_size"), 1)) == {}


@pytest.mark.usefixtures("made_up")
def test_it_turns_its_part_while_a_run_goes() -> None:
    before = small()
    after = live_changes.change_config(before, {KEY: 5})
    (change,) = live_changes.changes(before, after)
    assert (change.key, change.old, change.new) == (KEY, before.checkpoint.keep, 5)
    assert live_changes.parts([change]) == [ACTIVATIONS]


def test_where_it_decides_whether_another_acts_listing_and_drawing_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offload = KNOBS["memory.offload"]
    monkeypatch.setitem(KNOBS, "memory.offload", replace(offload, decides=6))
    monkeypatch.setitem(
        KNOBS, KEY, KnobFacts(acts=lambda now: bool(now["memory.offload"] != "none"), at_rest=2)
    )
    space = parse(
        {
            "name": "new", "ranks": 2, "base": BASE,
            "space": {"memory.offload": ["none", "optimizer"], KEY: [3, 4, 5]},
        }
    ).search_space  # fmt: skip
    listed = {(point["memory.offload"], point[KEY]) for point in space.legal_points}
    drawn = [space.random_point(Random(seed), set()) for seed in range(80)]
    assert listed == {("none", 2), ("optimizer", 3), ("optimizer", 4), ("optimizer", 5)}
    assert {(point["memory.offload"], point[KEY]) for point in drawn if point is not None} == listed


def test_a_knob_at_rest_keeps_a_null_that_is_offered() -> None:
    """As in the journals of studies that are there."""
    space = parse(
        {
            "name": "null",
            "ranks": 2,
            "base": BASE,
            "space": {"outer.method": ["none", "co2"], "outer.clip": [None, 1.0]},
        }
    ).search_space
    assert space.point({"outer.method": "none", "outer.clip": 1.0})["outer.clip"] is None
