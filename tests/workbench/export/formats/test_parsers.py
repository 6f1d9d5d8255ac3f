"""A thousand exports of random legal configurations, read by the trainers' own code, value by value; and the keys that
guards know are those of that code.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.trainers.environments import TRAINERS, knowledge, problems, require
from tests.support.trainers.results import noted
from tests.support.workbench.drawn_configs import legal
from workbench.export.mapping import documents
from workbench.export.mapping.rows import ranks_of, settings_of
from workbench.export.targets import find_target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MANY = 1000


@pytest.mark.parametrize("name", TRAINERS)
def test_a_thousand_are_accepted_as_they_are_meant(name: str) -> None:
    require(name)
    form = find_target(name).format
    assert form is not None
    exports = [
        {"text": form.text(form.make_document(config)), "ranks": ranks_of(settings_of(config))}
        for config in legal(MANY, f"parsed {name}")
    ]
    refused = {"text": TRAINERS[name].WRONG, "ranks": 2}
    *said, wrong = problems(name, [*exports, refused])
    assert wrong, "what reads a thousand exports says no to what the trainer refuses"
    assert len(said) == MANY
    assert Counter(said) == {"": MANY}
    noted(name, "parsed", "random legal configurations", f"{MANY:,} of {MANY:,} accepted")


@pytest.mark.parametrize("name", TRAINERS)
def test_the_known_keys_are_those_of_the_trainer(name: str) -> None:
    require(name)
    assert documents.read_format(name) == knowledge(name)
