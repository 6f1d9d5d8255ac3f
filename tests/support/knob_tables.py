"""What the reference says of knobs: each with its facts, what a study turns unasked, and what predictions leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config.errors import value_text
from engine.config.knobs.catalogue import KNOBS, default_of
from engine.config.knobs.facts import TURNS, KnobFacts
from engine.config.knobs.suggestions import LONG_SEQUENCE, MANY_WORDS
from engine.config.run_config import RunConfig
from tests.support.markdown import spelled, table
from tuning.space.knobs import default_space, parse_space


def knob_tables() -> Iterator[str]:
    """What is said of every knob, what a study turns unasked, and what predictions leave out."""
    named = {key: knob for key, knob in KNOBS.items() if knob.title}
    yield "## Knobs"
    yield (
        "Keys with a name on the form. *may change*: *numbers* where nothing is lost, and yet a step's loss may be "
        "another one. *exact*: the only value with which nothing is lost or late; empty where none loses anything by "
        "itself. *live*: what a turn while a run goes costs; empty where its start decides."
    )
    rows = (
        (
            f"`{key}`",
            knob.title,
            ", ".join((*knob.changes, *(["numbers"] if knob.alters_numbers else []))),
            knob.trade,
            f"`{value_text(default_of(key))}`" if knob.is_lossy else "",
            TURNS.get(knob.live, ""),
        )
        for key, knob in named.items()
    )
    yield table(("key", "name", "may change", "trade", "exact", "live"), rows)
    yield "## What a study turns unasked"
    yield "Where its file names no `space`. Of ranks their divisors: these are of 16."
    searched = ((key, values) for key in named if (values := searched_values(key)))
    yield table(
        ("key", "values", "not where"),
        ((f"`{key}`", values, unsearched(named[key])) for key, values in searched),
    )
    yield "## What predictions leave out"
    yield "Of keys with another value than their default; a note beside each prediction says so."
    yield table(
        ("key", "what"),
        ((f"`{key}`", knob.not_predicted) for key, knob in KNOBS.items() if knob.not_predicted),
    )


def unsearched(knob: KnobFacts) -> str:
    """Where a study that names no space does not turn a knob; empty of one that it always does."""
    return knob.why_not_searched or ("nothing is asked of the time to a loss" if knob.alters_learning else "")


#: Bases that have something to turn for every knob that a study turns unasked, each with its ranks.
SEARCHED: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 16),
    ({"data.sequence_length": LONG_SEQUENCE}, 16),
    ({"model.vocabulary": MANY_WORDS}, 16),
    ({"model.experts": 8, "lab.hosts": 16, "lab.islands": 2}, 16),
    ({"data.documents": "whole"}, 16),
    ({}, 1),
)


def searched_values(key: str) -> str:
    """What a study turns a knob between by itself, at the first base where it does; empty if at none."""
    for values, ranks in SEARCHED:
        base = RunConfig().with_values(values)
        if key in (space := default_space(base, ranks, in_time=True)):
            (knob,) = parse_space({key: space[key]}, base)
            return str(knob) if knob.is_range else ", ".join(f"`{spelled(one)}`" for one in knob.choices)
    return ""
