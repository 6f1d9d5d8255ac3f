"""Studies that turn how many ranks there are, and how many micro-batches a step has."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.layout import accumulation, layout_of
from tests.support.studies.fake import Machine, run_study, study
from tuning.space.encoding import Encoding
from tuning.space.space import Space

SPACE: dict[str, Any] = {
    "ranks": [2, 4, 8],
    "parallel.tp": [1, 2],
    "parallel.pp": [1, 2],
    "batch.micro_batch": [1, 2],
    "batch.accumulation": [2, 4],
}


@pytest.fixture(scope="module")
def space() -> Space:
    return study(ranks=4, space=SPACE).search_space


def test_every_legal_point_has_its_own_ranks_and_its_own_global_batch(space: Space) -> None:
    worlds = set()
    for point in space.legal_points:
        config = space.config(point)
        assert layout_of(config).world_size == point["ranks"]
        assert accumulation(config) == point["batch.accumulation"]
        worlds.add(point["ranks"])
    assert worlds == {2, 4, 8}
    assert len(space.legal_points) == 11 * 2 * 2  # all but tp 2 with pp 2 on 2 ranks


def test_the_baseline_is_plain_on_the_ranks_of_the_file(space: Space) -> None:
    point, note = space.baseline
    assert not note
    assert (point["ranks"], point["parallel.dp"], point["parallel.tp"]) == (4, 4, 1)
    assert space.config(point).batch.global_batch == space.base.batch.global_batch
    assert space.label(point).startswith("ranks=4 dp=4 tp=1 pp=1")
    assert "accumulation=2" in space.label(point)


def test_a_sampler_draws_each_point_and_reads_it_back(space: Space) -> None:
    encoding = Encoding(space)
    assert [parameter.name for parameter in encoding.parameters][:3] == ["log2_ranks", "log2_tp", "log2_pp"]
    for point in space.legal_points:
        params = encoding.encode(point)
        assert params is not None
        assert encoding.decode(params) == point
    drawn = space.random_point(Random(0), ())
    assert drawn in space.legal_points


def test_a_point_by_hand_names_its_ranks(space: Space) -> None:
    point = space.complete({"ranks": 8, "parallel.tp": 2})
    assert (point["parallel.dp"], point["batch.accumulation"]) == (4, 2)
    with pytest.raises(InputError, match=r"enqueue.*ranks=16 is not in the space"):
        space.complete({"ranks": 16})
    with pytest.raises(InputError, match="must be the study's 2 ranks"):
        space.complete({"ranks": 2, "parallel.tp": 2, "parallel.dp": 2})


@pytest.mark.parametrize("value", [[], [0], [2.5], {"low": 1, "high": 4}, [True], 3])
def test_what_is_no_number_of_ranks_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"space\.ranks.*whole numbers above 0"):
        _ = study(space={"ranks": value}).knobs


def test_a_study_over_them(tmp_path: Path) -> None:
    machine = Machine()
    document = run_study(study(space=SPACE, ranks=4, trials=12), tmp_path / "first", machine)
    assert document["state"] == "ended"
    assert len({layout_of(config).world_size for config in machine.configs}) > 1
    assert all(row["config"]["ranks"] in (2, 4, 8) for row in document["trials"])
