"""The search on a recorded table: what a prior may not see, and which results outlive a change of the formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import _search_runs as runs
from benchmarks import search
from benchmarks.published import playbook
from tuning.predict.model import constants


@pytest.fixture(scope="module")
def table() -> runs.Replayed:
    return runs.Replayed(playbook.TRIALS, {})


@pytest.mark.parametrize("unseen", ["cell", "size", "nodes", "size and nodes"])
def test_a_prior_sees_no_row_of_what_is_left_out(table: runs.Replayed, unseen: runs.Unseen) -> None:
    trials, asked = table.shipped.trials, []
    for split, cells in table.folds(unseen):
        known = table.drawn(split, 0)
        pairs = {(trials["model"][row], int(trials["nodes"][row])) for row in known}
        for cell in cells:
            asked.append(runs.name(cell))
            assert (cell.model, cell.nodes) not in pairs
            assert "size" not in unseen or cell.model not in {model for model, _ in pairs}
            assert "nodes" not in unseen or cell.nodes not in {nodes for _, nodes in pairs}
    assert sorted(asked) == sorted(map(runs.name, table.cells))


def test_the_worst_cell_is_that_with_the_least_mean_over_seeds() -> None:
    results: dict[str, runs.Result] = {
        "0": {"1B@2": {"score": 0.9}, "3B@2": {"score": 1.0}, "80B@1": {"said_after": 3}},
        "1": {"1B@2": {"score": 1.0}, "3B@2": {"score": 0.8}},
    }
    assert search.worst(results) == ("3B@2", pytest.approx(0.9))
    row = search.row(search.Contender("prior", lambda *_: {}, search.BARS), _with_failures(results))
    assert "0.900 (3B@2)" in row and row[-1] == "no, no, yes"


def _with_failures(results: dict[str, runs.Result]) -> dict[str, runs.Result]:
    return {
        seed: {cell: told | ({"failed": 0.05} if "score" in told else {}) for cell, told in result.items()}
        for seed, result in results.items()
    }


def test_results_of_priors_last_as_long_as_the_formulas(
    table: runs.Replayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "kept.json", search.physics_of(table)
    kept = search.Kept(path, playbook.TRIALS, now)
    kept.fits["size-1B-0"] = {"gemm_share": 0.5}
    for name in ("prior, cell unseen", "random"):
        kept.of(name)["0"] = {}
    kept.write()
    assert set(search.Kept(path, playbook.TRIALS, now).of("prior, cell unseen")) == {"0"}
    monkeypatch.setattr(constants, "START", constants.START.put(block_seconds=7e-4))
    other = search.physics_of(table)
    assert other != now
    fresh = search.Kept(path, playbook.TRIALS, other)
    assert (fresh.of("prior, cell unseen"), fresh.fits, set(fresh.of("random"))) == ({}, {}, {"0"})


def test_as_many_rows_are_drawn_as_there_are(table: runs.Replayed) -> None:
    split: runs.Split = ("nodes", "", 64)
    rows = table.training(split)
    assert len(table.drawn(split, 0)) == len(rows) and set(table.drawn(split, 0)) <= set(rows)
    assert not np.array_equal(table.drawn(split, 0), table.drawn(split, 1))
