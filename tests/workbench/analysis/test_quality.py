"""``workbench quality``: which run is the exact baseline of a lossy one, and what stands beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.session import Session
from tests.support.runs import execute, small
from tests.workbench.conftest import Run
from workbench.analysis import quality
from workbench.home import runs

OWN = [{"step": step, "loss": loss, "seconds": step * 0.1, "wire_bytes": step * 1e3} for step, loss in
       ((10, 3.0), (20, 2.5), (30, 2.1))]  # fmt: skip
EXACT = [{"step": step, "loss": loss, "seconds": step * 1.0, "wire_bytes": step * 1e4} for step, loss in
         ((10, 2.9), (20, 2.4), (40, 1.9))]  # fmt: skip


def test_losses_are_compared_after_the_same_tokens() -> None:
    found = quality.compare_quality(OWN, EXACT, 64)
    assert found is not None
    assert (found["step"], found["tokens"]) == (20, 1280)
    assert (found["loss"], found["baseline_loss"]) == (2.5, 2.4)
    assert found["increase"] == pytest.approx(2.5 / 2.4 - 1)
    assert found["times_fewer_bytes"] == pytest.approx(10)
    # Both have reached the worse of the two losses: the lossy run after 20 steps of 0.1 s, the other within 20 of 1 s.
    assert (found["target_loss"], found["seconds_to_target"]) == (2.5, 2.0)
    assert found["baseline_seconds_to_target"] == 20.0
    assert quality.compare_quality(OWN, [{**EXACT[0], "step": 11}], 64) is None
    assert quality.compare_quality([], EXACT, 64) is None
    assert quality.seconds_to(OWN, 1.0) is None


def kept(home: Path, config: RunConfig, name: str, rows: list[dict[str, Any]], **status: Any) -> runs.RunView:
    """A run's folder as it is left behind."""
    folder = home / name
    folder.mkdir(parents=True)
    run_folder.write_json(folder / run_folder.CONFIG, config.model_dump(mode="json"))
    outcome = {"outcome": {"ending": "completed", "reason": ""}, "state": "ended"}
    run_folder.write_json(folder / run_folder.STATUS, outcome | status)
    tree = {
        "id": name,
        "layout": {},
        "world_size": 2,
        "backend": "gloo",
        "parameters": 1,
        "tokens_per_step": 64,
    }
    run_folder.write_json(folder / run_folder.SUMMARY, tree | {"quality": rows})
    return runs.load(folder)


def test_the_baseline_is_the_exact_run_of_equal_configuration(tmp_path: Path) -> None:
    lossy = small(parallel__dp=2, compression__method="topk", compression__ratio=0.05, outer__period=3)
    view = kept(tmp_path, lossy, "20260101-000000-aaaa", OWN)
    assert quality.report(tmp_path, view)["baseline"] is None
    exact = small(parallel__dp=2)
    kept(tmp_path, exact.with_values({"train.seed": 1}), "20260101-000001-bbbb", EXACT)
    kept(tmp_path, exact.with_values({"parallel.dp": 1}), "20260101-000002-cccc", EXACT)
    kept(tmp_path, exact.with_values({"compression.method": "sign"}), "20260101-000003-dddd", EXACT)
    died = {"outcome": {"ending": "crashed", "reason": ""}}
    kept(tmp_path, exact, "20260101-000004-eeee", EXACT, **died)
    assert quality.report(tmp_path, view)["baseline"] is None
    kept(tmp_path, exact, "20260101-000005-ffff", EXACT)
    kept(tmp_path, exact, "20260101-000006-0000", EXACT[:1])  # newer, but with fewer losses at the same steps
    found = quality.report(tmp_path, view)
    assert (found["baseline"], found["command"]) == ("20260101-000005-ffff", None)
    assert found["lossy"] == {"compression.method": "topk"}
    assert found["compared"]["step"] == 20


def test_a_missing_baseline_comes_with_the_command_that_makes_it(tmp_path: Path) -> None:
    lossy = small(parallel__dp=2, compression__method="topk", compression__layers={"head*": 0.5})
    view = kept(tmp_path, lossy, "20260101-000000-aaaa", OWN[:1])
    found = quality.report(tmp_path, view)
    assert found["command"].startswith(f"workbench train {view.folder}/config.json --home {tmp_path} ")
    assert found["command"].endswith("--set compression.method=none --set compression.layers={}")
    assert "train.validate_every=N" in found["notes"][0]


def test_a_baseline_that_is_named_must_be_exact_and_have_seen_the_same(tmp_path: Path) -> None:
    lossy, exact = small(parallel__dp=2, compression__method="topk"), small(parallel__dp=2)
    view = kept(tmp_path, lossy, "20260101-000000-aaaa", OWN)
    other = kept(tmp_path, exact.with_values({"data.sequence_length": 32}), "20260101-000001-bbbb", EXACT)
    with pytest.raises(InputError, match=r"has data\.sequence_length=32 where the run has 64"):
        quality.report(tmp_path, view, other)
    with pytest.raises(InputError, match=r"is not exact: compression\.method=topk"):
        quality.report(tmp_path, view, view)
    split = kept(
        tmp_path, exact.with_values({"parallel.dp": 1, "parallel.tp": 2}), "20260101-000002-cccc", EXACT
    )
    found = quality.report(tmp_path, view, split)
    assert found["baseline"] == split.id
    assert "the baseline has parallel.dp 1, here 2" in found["notes"][0]
    with pytest.raises(InputError, match="nothing in it is lossy or late"):
        quality.report(tmp_path, other)


@pytest.mark.timeout(300)
def test_a_real_pair_of_runs_from_the_same_seed(tmp_path: Path, command: Run) -> None:
    length = {"parallel__dp": 2, "train__steps": 6, "train__validate_every": 3}
    with Session(tmp_path) as session:
        _, exact = execute(session, small(**length))
        outcome, lossy = execute(
            session, small(**length, compression__method="int8", compression__start_step=3)
        )
    assert outcome.good
    done = command("quality", lossy.id, "--home", str(tmp_path), "--json")
    assert done.code == 0, done.err
    found = done.document
    assert found["baseline"] == exact.id
    curve, beside = found["curve"], found["baseline_curve"]
    assert [row["step"] for row in curve] == [row["step"] for row in beside] == [3, 6]
    assert curve[0]["loss"] == beside[0]["loss"], "until compression starts both are the same run"
    assert 0 < abs(found["compared"]["increase"]) < 0.05
    assert found["compared"]["times_fewer_bytes"] > 1.3
    said = command("quality", lossy.id, "--home", str(tmp_path))
    assert "compression.method=int8" in said.out and "after 6 steps" in said.out
    wrong = command("quality", exact.id, "--home", str(tmp_path))
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
