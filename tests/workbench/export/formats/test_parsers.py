"""A thousand exports of random legal configurations, read by the trainers' own code, value by value; and the keys that
guards know are those of that code.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.trainers.environments import OF_FORMAT, asked, knowledge, require
from tests.support.trainers.results import noted
from tests.support.workbench.drawn_configs import legal
from workbench.export.mapping import documents
from workbench.export.mapping.rows import ranks_of, settings_of
from workbench.export.targets import find_target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MANY = 1000
#: A file that each trainer refuses: what reads a thousand exports would say so.
WRONG = {
    "hf": '{"max_stepz": 1}',
    "accelerate": "distributed_type: FSDP\nnum_process: 2\n",
    "deepspeed": '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}',
    "megatron": "--num-layer 2",
    "torchtitan": "def exported():\n    raise ValueError('no recipe')\n",
    "automodel": "distributed: {strategy: nothing, dp_size: 2}\nstep_scheduler: {}\n",
}


@pytest.mark.parametrize("name", OF_FORMAT)
def test_a_thousand_are_accepted_as_they_are_meant(name: str) -> None:
    require(name)
    form = find_target(name).format
    assert form is not None
    exports = [
        {"text": form.text(form.make_document(config)), "ranks": ranks_of(settings_of(config))}
        for config in legal(MANY, f"parsed {name}")
    ]
    given = json.dumps([*exports, {"text": WRONG[name], "ranks": 2}])
    *said, wrong = json.loads(asked(name, f"parse_{name}", given=given).splitlines()[-1])
    assert wrong
    assert len(said) == MANY
    assert Counter(said) == {"": MANY}
    noted(name, "parsed", "random legal configurations", f"{MANY:,} of {MANY:,} accepted")


@pytest.mark.parametrize("name", OF_FORMAT)
def test_the_known_keys_are_those_of_the_trainer(name: str) -> None:
    require(name)
    assert documents.read_format(name) == knowledge(name)
