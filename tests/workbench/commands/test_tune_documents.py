"""The ready study of documents and experts on two islands: what it may try, and at a small budget its end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from engine.config.validation import rules
from tests.support.engine.lab import needs_lab
from tests.workbench.conftest import Run
from tuning.spec import study_file

STUDY = Path(__file__).parents[3] / "examples" / "documents-and-experts.yaml"
SHUFFLED = [0, 2, 1, 3]
#: A model and steps that even a busy machine is through soon; the longest document still needs four ranks' room.
SMALL = [
    "base.model={layers: 1, hidden: 32, heads: 4, kv_heads: 4, ffn_hidden: 64, experts: 4}",
    "base.data={documents: whole, sequence_length: 64, longest_document: 256}",
    "base.batch={global_batch: 8, micro_batch: 1}",
    "base.train={steps: 3, warmup: 1}",
    "confirm_repeats=0",
]


def test_every_value_that_the_study_offers_is_drawn_in_some_legal_trial() -> None:
    """Its baseline is the base: ranks in a shuffled order, groups of four, experts everywhere."""
    file = study_file.load(STUDY)
    space = file.search_space
    point, note = space.baseline
    config = space.config(point)
    rules.check(config)
    assert not note
    assert (config.parallel.placement, config.parallel.sequence_groups, config.parallel.ep) == (
        SHUFFLED,
        4,
        1,
    )
    drawn = [found for seed in range(100) if (found := space.random_point(Random(seed), ()))]
    assert len(drawn) == 100
    for found in drawn:
        rules.check(space.config(found))
    for knob in file.knobs:
        tried = {repr(found[knob.key]) for found in drawn}
        assert tried == {repr(value) for value in knob.choices}, knob.key


@needs_lab
@pytest.mark.timeout(300)
def test_the_study_of_documents_and_experts_runs_to_its_end(command: Run, home: Path) -> None:
    sets = [argument for setting in SMALL for argument in ("--set", setting)]
    found = command("tune", STUDY, "--trials", 4, *sets, "--json").document
    assert (found["study"], found["state"]) == ("documents-and-experts", "ended")
    assert [row["outcome"] for row in found["trials"]] == ["completed"] * 4
    assert found["best"] is not None and found["baseline"] is not None
    for row in found["trials"]:
        config, summary = (
            json.loads((home / row["run"] / name).read_text()) for name in ("config.json", "summary.json")
        )
        assert sorted(config["parallel"]["placement"] or range(4)) == [0, 1, 2, 3], "auto is worked out"
        assert [one["layer"] for one in summary["experts"]] == [0]
        taken = Counter[int]()
        for one in summary["sequence_groups"]:
            taken[one["step"]] += one["documents"]
        assert set(taken.values()) == {8}
    shown = " ".join(command("show", "documents-and-experts").out.split())
    for pick in found["picks"]:
        assert f"picked: {' '.join(pick['line'].split())}" in shown
