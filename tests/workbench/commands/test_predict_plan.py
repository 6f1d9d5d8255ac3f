"""``plan``: the best layouts for a cluster, in JSON and for people, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.run.calibration import store
from tests.support.engine import calibrations
from tests.workbench.conftest import Run

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(("model", "nodes", "batch"), [("22b", 2, 640), ("175b", 16, 640)])
def test_a_model_by_name_on_frontier(command: Run, model: str, nodes: int, batch: int) -> None:
    sizes = ("--nodes", nodes, "--global-batch", batch, "--top", 3)
    done = command("plan", "--cluster", "frontier", "--model", model, *sizes, "--json")
    assert done.code == 0, done.err
    found = done.document
    assert found["cluster"]["devices"] == 8 * nodes
    assert (found["model"]["preset"], found["global_batch"], found["sequence_length"]) == (model, batch, 2048)
    assert len(found["best"]) == 3
    for row in found["best"]:
        assert row["layout"]["dp"] * row["layout"]["tp"] * row["layout"]["pp"] == 8 * nodes
        assert row["out_of_memory_probability"] <= 0.05
        assert row["memory_bytes"]["median"] < found["memory_limit_bytes"]
    assert {"axis", "value", "verdict", "reason", "slower"} <= set(found["families"][0])


def test_a_plan_for_people(command: Run) -> None:
    done = command("plan", "--cluster", "frontier", "--nodes", 2, "--model", "22b", "--global-batch", 640)
    assert done.code == 0, done.err
    for words in ("22b on 16 x mi250x-gcd (frontier)", "legal layouts considered", "Fastest layouts that fit", "90 %",
                  "Layouts that trade time for memory", "Why not:", "times the memory of a device", "% slower: ",
                  "do not fall evenly", "messages of tp"):  # fmt: skip
        assert words in done.out, words
    assert max(map(len, done.out.partition("Why not")[0].splitlines())) <= 160


def test_a_configuration_and_a_study(command: Run) -> None:
    sets = ("--set", "model.preset=350m", "--set", "data.sequence_length=1024")
    done = command("plan", EXAMPLES / "train.yaml", *sets, "--cluster", "dgx-a100", "--nodes", 1, "--json")
    assert done.code == 0, done.err
    assert (done.document["global_batch"], done.document["model"]["preset"]) == (48, "350m")
    study = command("plan", EXAMPLES / "quickstart.yaml", "--cluster", "dgx-a100", "--json")
    assert study.code == 0, study.err
    layout = study.document["best"][0]["layout"]
    assert layout["dp"] * layout["tp"] * layout["pp"] == 4


def test_this_machine(command: Run, home: Path) -> None:
    store.save(home, calibrations.calibration())
    done = command("plan", EXAMPLES / "train.yaml", "--json")
    assert done.code == 0, done.err
    assert done.document["cluster"]["accelerator"] == "this CPU"


def test_nothing_fits(command: Run) -> None:
    done = command("plan", "--cluster", "dgx-a100", "--nodes", 1, "--model", "175b", "--json")
    assert done.code == 1
    assert done.document["best"] == []
    assert all(family["verdict"] in ("memory", "illegal") for family in done.document["families"])
    assert command("plan", "--cluster", "dgx-a100", "--nodes", 1, "--model", "175b").code == 1


def test_what_is_wrong(command: Run) -> None:
    command("plan").refused("plan", "--model")
    command("plan", "--model", "7b").refused("--cluster", "workbench calibrate")
    command("plan", "--model", "huge", "--cluster", "frontier").refused("model.preset='huge'", "175b")
    command("plan", "--model", "7b", "--cluster", "fronteer").refused("cluster='fronteer'", "frontier")
    command("plan", "--model", "7b", "--cluster", "mi300x-node", "--nodes", 2).refused(
        "bytes_per_second_per_node"
    )
    asked = ("plan", "--model", "7b", "--cluster", "dgx-a100")
    command(*asked, "--set", "model.experts=8").refused("model.experts=8", "not modelled")
    command(*asked, "--nodes", 64, "--global-batch", 1, "--sequence", 3).refused("no legal layout")
    command("plan", EXAMPLES / "none.yaml", "--cluster", "frontier").refused("none.yaml", "No such file")
