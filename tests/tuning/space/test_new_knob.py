"""A knob is its field and one entry: a made-up one is offered, reset, drawn, named, counted, shown, refused, kept out
of exact runs, told of runs that resume, and turned while a run goes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.checkpoint.checkpoint_folder import Manifest
from engine.checkpoint.resume import ResumePoint, changes
from engine.config import presets
from engine.config.errors import InputError
from engine.config.knobs.catalogue import KNOBS, acts, arithmetic, exact_changes, lossy
from engine.config.knobs.facts import ACTIVATIONS, TURNS, Context, KnobFacts, Refusal
from engine.config.presets import WorkloadFacts
from engine.config.run_config import RunConfig
from engine.config.validation import live_changes, rules
from tests.support.engine import random_points
from tests.support.gpu.fake_cuda import cases
from tests.support.knob_tables import knob_tables
from tests.support.runs import small
from tests.support.workbench import drawn_configs
from tuning.predict.forecast_document import notes
from tuning.space import labels
from tuning.space.knobs import default_space, offered_space
from tuning.spec.study_file import parse
from workbench.analysis import quality
from workbench.pages.study import new_knobs
from workbench.text import words

#: A field that has no entry, of default 2; here it acts on several pipeline stages alone.
KEY = "checkpoint.keep"
ENTRY = KnobFacts(
    "Copies on the shelf",
    "copies",
    "copies",
    always_in_label=True,
    changes=("memory", "loss"),
    trade="more of them, and less room",
    neutral_default=True,
    suggested=lambda search: [2, 3, 5] if search.ranks > 1 else None,
    searched_by_default=lambda search: search.ranks > 2,
    refused={
        Context.FROZEN_MODEL: "a frozen model has no copies",
        Context.OWN_STEP: "copies nothing",
        Context.WHOLE_DOCUMENTS: Refusal(legal=(3,)),
    },
    acts=lambda now: bool(now["parallel.pp"] > 1),
    live=ACTIVATIONS,
    not_predicted="copies are not counted",
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


@pytest.mark.parametrize(("live", "why"), [("", ""), (ACTIVATIONS, "the shelf is built first")])
def test_an_entry_says_which_part_of_a_run_it_turns_or_why_none(live: str, why: str) -> None:
    with pytest.raises(
        ValueError, match=r"'Copies on the shelf' needs one of `live`, .* `why_only_at_start`"
    ):
        replace(ENTRY, live=live, why_only_at_start=why)
    assert replace(ENTRY, live="", why_only_at_start="the shelf is built first").live == ""


@pytest.mark.usefixtures("made_up")
def test_it_is_offered_where_it_says_so_and_usual_where_it_says_so() -> None:
    config = RunConfig()
    assert offered_space(config, 2)[KEY] == [2, 3, 5]
    assert [KEY in default_space(config, ranks) for ranks in (2, 4)] == [False, True]
    assert KEY not in offered_space(config, 1)


@pytest.mark.usefixtures("made_up")
def test_where_it_does_not_act_it_is_reset_and_else_it_is_drawn_named_and_counted() -> None:
    space = parse(
        {"name": "new", "ranks": 2, "base": BASE, "space": {"parallel.pp": [1, 2], KEY: [2, 3, 5]}}
    ).search_space
    drawn = [space.random_point(Random(seed), set()) for seed in range(60)]
    flat = {(point["parallel.pp"], point[KEY]) for point in drawn if point is not None}
    assert flat == {(1, 2), (2, 2), (2, 3), (2, 5)}

    told = {copies: space.point({"parallel.pp": 2, KEY: copies}) for copies in (2, 5)}
    assert "copies=5" in labels.label(space, told[5])
    assert "copies" not in labels.label(space, space.point({"parallel.pp": 1, KEY: 5}))
    assert labels.complexity(space, told[5]) == labels.complexity(space, told[2]) + 1


@pytest.mark.usefixtures("made_up")
def test_its_names_are_on_form_and_table() -> None:
    assert (new_knobs.title(KEY), words.short(KEY)) == ("Copies on the shelf", "copies")
    assert new_knobs.knob_help(KEY).startswith("May change memory and loss: more of them, and less room")


@pytest.mark.usefixtures("made_up")
def test_the_reference_has_it() -> None:
    text = "\n".join(knob_tables())
    for row in (
        f"| `{KEY}` | Copies on the shelf | memory, loss | more of them, and less room | `2` | {TURNS[ACTIVATIONS]} |",
        f"| `{KEY}` | `2`, `3`, `5` |  |",
        f"| `{KEY}` | copies are not counted |",
    ):
        assert row in text.splitlines()


@pytest.mark.usefixtures("made_up")
def test_all_but_one_value_lose_something() -> None:
    assert lossy({KEY: 5}) == {KEY: 5}
    assert lossy({KEY: 2}) == {}
    assert exact_changes({KEY: 5}, {KEY: 2}) == {KEY: 2}
    exact = small().flat()
    quality.check("baseline", exact | {KEY: 5}, exact)
    with pytest.raises(InputError, match=f"is not exact: {KEY}=5"):
        quality.check("baseline", exact, exact | {KEY: 5})


def test_a_run_that_resumes_tells_it_where_it_decides_the_numbers_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = ResumePoint(Path("checkpoint"), Manifest(3, {}, small().flat(), {}))
    now = small(checkpoint__keep=5)
    assert changes(now, point) == {}
    for entry in (ENTRY, KnobFacts(alters_learning=True), KnobFacts(alters_numbers=True)):
        monkeypatch.setitem(KNOBS, KEY, entry)
        assert changes(now, point) == {KEY: [2, 5]}
    monkeypatch.setitem(KNOBS, KEY, replace(ENTRY, outside_steps=True))
    assert changes(now, point) == {}


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        (
            {"train.adapt": "lora", "train.resume": "a/run"},
            "train.adapt",
            f"a frozen model has no copies; set {KEY} to 2, or this to none",
        ),
        (
            {"model.workload": "saddle"},
            KEY,
            "saddle takes steps of its own, which copies nothing; set it to 2",
        ),
        (
            {"data.documents": "whole"},
            KEY,
            "goes without whole documents; set it to 2 or 3, or data.documents to masked",
        ),
    ],
)
def test_it_is_refused_where_its_entry_says_so(
    values: dict[str, Any], field: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig().with_values(values)
    monkeypatch.setattr(presets, "_KNOWN", {})
    presets.remember(
        config.model, WorkloadFacts("saddle", 4, 10, 1, (), None, "", "", None, own_step=("dp",))
    )

    def told(copies: int) -> list[tuple[str, str]]:
        return [(one.field, one.remedy) for one in rules.problems(config.with_values({KEY: copies}))]

    assert told(2) == []
    assert told(5) == [(field, remedy)]
    assert told(3) == ([] if field == KEY and "masked" in remedy else told(5))


def test_where_it_does_nothing_it_is_let_through_unless_its_entry_calls_that_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = RunConfig()

    def told(values: dict[str, Any]) -> list[tuple[str, str]]:
        return [(one.field, one.remedy) for one in rules.problems(config.with_values(values))]

    monkeypatch.setitem(KNOBS, KEY, ENTRY)
    assert told({KEY: 5}) == []
    why = "with pp=1 nothing is copied; set it to 2 or raise pp"
    monkeypatch.setitem(KNOBS, KEY, replace(ENTRY, inactive_problem=why))
    assert told({KEY: 5}) == [(KEY, why)]
    assert told({KEY: 2}) == told({KEY: 5, "parallel.pp": 2}) == []


def test_predictions_say_that_they_leave_it_out(made_up: None) -> None:
    assert f"{KEY}=5: copies are not counted" in notes(small(checkpoint__keep=5))
    assert not any(KEY in line for line in notes(small()))


def test_tests_draw_it(made_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of it, runs on ranks of it, and steps on the fake device."""
    drawn = [drawn_configs._draw(Random(seed)) for seed in range(200)]
    assert {config.checkpoint.keep for config in drawn} == {1, 2, 3, 5}, "the exports' own draw 1 and 2"
    monkeypatch.setattr(random_points, "values_of", random_points.values_of.__wrapped__)
    assert KEY in random_points.turned_keys()
    assert (KEY, 3) in cases.values()


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
    monkeypatch.setitem(KNOBS, "memory.offload", replace(offload, reset_order=6))
    monkeypatch.setitem(
        KNOBS,
        KEY,
        KnobFacts(acts=lambda now: bool(now["memory.offload"] != "none"), reset_when_inactive=True),
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


def test_a_knob_that_does_not_act_keeps_a_null_that_is_offered() -> None:
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
