"""``predict``: time and memory of a configuration, what stands against it, and what a layout of any size must hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.calibration import fingerprint, store
from tests.support.engine import calibrations
from tests.workbench.conftest import Run
from tuning.predict import target
from tuning.predict.forecast import forecasts
from workbench.home.inputs import parse_config

EXAMPLE = Path(__file__).parents[3] / "examples" / "train.yaml"
LARGE = (
    "model.preset=7b", "data.sequence_length=2048", "batch.global_batch=64", "batch.micro_batch=1", "precision=bf16",
    "memory.parameters=bf16", "parallel.dp=4", "parallel.tp=2", "parallel.pp=2",
)  # fmt: skip
ROW = {
    "stage", "rank", "ranks", "layers", "in_flight", "parameters", "parameter_bytes", "gradient_bytes",
    "optimizer_bytes", "activation_bytes", "activation_formula_bytes", "buffer_bytes", "host_bytes",
    "published_bytes", "total_bytes",
}  # fmt: skip


def test_a_legal_layout_as_json(command: Run) -> None:
    sets = ["parallel.dp=4", "parallel.pp=2", "parallel.zero_stage=1"]
    done = command("predict", EXAMPLE, *sets, "--set", "parallel.tp=2", "--dry-run", "--json")
    assert done.code == 0
    assert not done.err
    found = done.document
    assert set(found) == {
        "legal", "problems", "layout", "world_size", "stages", "largest_bytes", "mismatches", "notes", "seconds",
    }  # fmt: skip
    assert (found["legal"], found["problems"], found["world_size"]) == (True, [], 16)
    assert found["layout"] == {"dp": 4, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "zero_stage": 1}
    assert [row["stage"] for row in found["stages"]] == [[0], [1]]
    assert [row["rank"] for row in found["stages"]] == [0, 8]
    for row in found["stages"]:
        assert set(row) == ROW
        parts = ("parameter", "gradient", "optimizer", "activation", "buffer")
        assert row["total_bytes"] == sum(row[f"{part}_bytes"] for part in parts)
    assert found["largest_bytes"] == max(row["total_bytes"] for row in found["stages"])


def test_a_legal_layout_for_people(command: Run) -> None:
    done = command("predict", EXAMPLE, "--dry-run", "parallel.dp=2", "precision=bf16")
    assert done.code == 0
    assert not done.err
    for words in (
        "legal",
        "dp2, 2 ranks",
        "0 to 1",
        "1.4 M",
        "Most on rank 0",
        "arXiv 2205.05198",
        "Checked in",
    ):
        assert words in done.out, words


def test_every_broken_rule_is_one_line(command: Run) -> None:
    sets = ["parallel.tp=3", "parallel.pp=5", "batch.micro_batch=7", "schedule.stage_layers=[1, 2]"]
    done = command("predict", EXAMPLE, "--dry-run", *sets)
    assert done.code == 2
    assert not done.out
    lines = done.err.splitlines()
    assert len(lines) >= 4
    assert all(line.startswith("error: ") for line in lines)
    for words in ("must divide heads=4", "layers=4", "batch.micro_batch=7", "schedule.stage_layers"):
        assert words in done.err, words


def test_an_illegal_layout_as_json(command: Run) -> None:
    done = command("predict", EXAMPLE, "--dry-run", "--json", "parallel.tp=3")
    assert done.code == 2
    found = done.document
    assert (found["legal"], found["stages"], found["largest_bytes"]) == (False, [], None)
    assert [f"error: {problem}" for problem in found["problems"]] == done.err.splitlines()


def test_input_that_is_wrong(command: Run, tmp_path: Path) -> None:
    command("predict", EXAMPLE).refused("--cluster", "workbench calibrate")
    command("predict", tmp_path / "none.yaml", "--dry-run").refused("none.yaml", "No such file")
    command("predict", EXAMPLE, "--dry-run", "parallel.tpp=2").refused("parallel.tpp=2", "known here")
    command("predict", EXAMPLE, "--dry-run", "model.preset=huge").refused("model.preset='huge'", "1t")
    command("predict", "--dry-run").refused("CONFIG")


def test_time_and_memory_as_json(command: Run) -> None:
    done = command("predict", EXAMPLE, *LARGE, "--cluster", "selene", "--nodes", "2", "--json")
    assert done.code == 0, done.err
    assert not done.err
    found = done.document
    assert found["world_size"] == 16
    assert found["cluster"] == {
        "name": "selene", "devices": 16, "devices_per_node": 8, "accelerator": "a100-80gb",
    }  # fmt: skip
    assert 0 < found["step_seconds"]["low"] < found["step_seconds"]["median"] < found["step_seconds"]["high"]
    assert found["memory_bytes"]["median"] < found["memory_limit_bytes"]
    assert {"breakdown", "limits", "changes", "notes", "mfu", "tokens_per_second"} <= set(found)
    outside = found["outside_allocator_bytes"]
    assert found["memory_breakdown"]["outside_allocator"] == outside["median"]
    assert 0 < outside["low"] < outside["median"] < outside["high"]
    assert {one["axis"] for one in outside["communicators"]} == {"world", "data", "tp", "norm", "pp"}
    assert found["changes"][0]["gain"] == max(change["gain"] for change in found["changes"])


def test_time_and_memory_for_people(command: Run) -> None:
    done = command("predict", EXAMPLE, *LARGE, "--cluster", "selene")
    assert done.code == 0, done.err
    for words in ("dp4 · tp2 · pp2", "selene (a100-80gb)", "90 %", "tokens/s", "MFU", "out of memory with", "limits",
                  "outside torch's allocator: CUDA context and buffers of 6 NCCL communicators, believed",
                  "Where the time of a step goes", "matrix products", "What would change that:",
                  "parallel.zero_stage="):  # fmt: skip
        assert words in done.out, words


UNEVEN = """
name = "ours"
[[groups]]
accelerator = "a100-80gb"
nodes = 1
devices_per_node = 8
network = "none"
inside.bytes_per_second = 300e9
[[groups]]
accelerator = "h100-sxm"
nodes = 1
devices_per_node = 8
network = "none"
inside.bytes_per_second = 450e9
[across]
bytes_per_second = 3e9
"""


def test_groups_that_differ_are_told_where_ranks_belong(command: Run, tmp_path: Path) -> None:
    """The advice can be taken as it is printed, and then there is nothing left to gain."""
    file = tmp_path / "ours.toml"
    file.write_text(UNEVEN, encoding="utf-8")
    sets = (*LARGE, "model.preset=1b", "parallel.dp=8", "parallel.tp=1")
    found = command("predict", EXAMPLE, *sets, "--cluster", file, "--json").document["placement"]
    assert {"order", "stage_layers", "gain", "reason", "values"} <= set(found)
    assert sorted(found["order"]) == list(range(16))
    assert sum(found["stage_layers"]) == 16
    assert found["gain"] > 0
    said = command("predict", EXAMPLE, *sets, "--cluster", file)
    line = next(line for line in said.out.splitlines() if "schedule.stage_layers=" in line)
    assert "Best placement of ranks on ours:" in said.out
    assert "whatever the placement" in said.out
    taken = line.partition("% tokens/s")[2].split()
    after = command("predict", EXAMPLE, *sets, *taken, "--cluster", file, "--json").document["placement"]
    assert sum(after["seconds"].values()) == pytest.approx(sum(found["seconds"].values()))
    assert after["values"].get("schedule.stage_layers") is None
    even = command("predict", EXAMPLE, *LARGE, "--cluster", "selene", "--json").document
    assert even["placement"] is None


def test_this_machine_if_it_is_calibrated(command: Run, home: Path) -> None:
    store.save(home, calibrations.calibration())
    done = command("predict", EXAMPLE, "--home", home, "--json")
    assert done.code == 0, done.err
    assert done.document["cluster"]["accelerator"] == "this CPU"
    command("predict", EXAMPLE, "parallel.dp=4").refused("world size=4", "at most 1")
    command("predict", EXAMPLE, "precision=bf16").refused("peak_flops.bf16", "it has fp32")


def test_finished_runs_of_this_machine_count(command: Run, home: Path) -> None:
    machine = calibrations.calibration()
    store.save(home, machine)
    before = command("predict", EXAMPLE, "--home", home, "--json").document
    assert not before["experience"]["fitted"]
    here = target.calibrated_target(machine)
    assert here.sharing is not None
    here = replace(here, sharing=replace(here.sharing, most=2))
    for layout in ({"parallel.dp": 2}, {"parallel.tp": 2}, {}):
        for micro in (1, 2, 4):
            config = parse_config(EXAMPLE, ["device=cpu"]).with_values({**layout, "batch.micro_batch": micro})
            finished_run(home, config, 1.5 * forecasts([config], here)[0].step_seconds.median)
    after = command("predict", EXAMPLE, "--home", home, "--json").document
    told = after["experience"]
    assert (told["runs"], told["configurations"], told["layouts"], told["fitted"]) == (9, 9, 3, True)
    assert told["memory"]["learned"]
    width = [one["step_seconds"]["high"] / one["step_seconds"]["low"] for one in (after, before)]
    assert width[0] < width[1]
    assert command("predict", EXAMPLE, "parallel.dp=2", "--json").document["cluster"]["devices"] == 2
    said = command("predict", EXAMPLE).out
    for words in (
        "constants fitted to 9 of your finished runs (3 layouts)",
        "learned from 9 runs, left-out error",
    ):
        assert words in said, words
    without = command("predict", EXAMPLE, "--home", home, "--without-runs", "--json").document
    assert without["experience"] is None
    assert without["step_seconds"] == before["step_seconds"]
    planned = command("plan", EXAMPLE, "--home", home, "--json").document
    assert planned["experience"] == told
    assert command("plan", EXAMPLE, "--without-runs", "--json").document["experience"] is None


def finished_run(home: Path, config: RunConfig, seconds: float) -> None:
    """A run folder with what a prediction reads of it."""
    folder = run_folder.create(home, config, {})
    step = {"median": seconds, "p95": seconds, "low": None, "high": None}
    run_folder.write_json(
        folder / run_folder.SUMMARY, {"step_seconds": step, "peak_memory_bytes": 400 * 2**20}
    )
    told = {"outcome": {"ending": "completed"}, "backend": "gloo", "state": "ended"}
    run_folder.update_status(folder, **told, fingerprint=fingerprint.this_machine().as_dict())


def test_a_stale_calibration_is_not_used(command: Run, home: Path) -> None:
    calibrations.write_stale(home)
    command("predict", EXAMPLE).refused("stale", "workbench calibrate", "--cluster")


def test_why_not_for_people(command: Run) -> None:
    done = command("predict", EXAMPLE, *LARGE, "memory.recompute=full", "--cluster", "selene", "--why-not")
    assert done.code == 0, done.err
    for words in (
        "legal",
        "fits",
        "the best of as many ranks and this batch",
        "behind it: ",
        "of what is lost",
    ):
        assert words in done.out, words
    assert "recomputation" in done.out.partition("behind it: ")[2]


def test_why_not_as_json(command: Run) -> None:
    done = command("predict", EXAMPLE, *LARGE, "--cluster", "selene", "--why-not", "--json")
    assert done.code == 0
    found = done.document
    assert set(found) == {
        "legal",
        "problems",
        "layout",
        "fits",
        "slower",
        "terms",
        "best",
        "reason",
        "prediction",
    }
    assert found["legal"]
    assert found["slower"] > 0
    assert found["terms"][0]["words"].startswith("launches") or found["terms"][0]["seconds"] > 0
    broken = command("predict", EXAMPLE, *LARGE, "batch.micro_batch=7", "parallel.tp=3", "parallel.dp=8",
                     "parallel.pp=1", "--cluster", "selene", "--why-not", "--json")  # fmt: skip
    assert broken.code == 2
    assert len(broken.document["problems"]) >= 2
    assert [f"error: {problem}" for problem in broken.document["problems"]] == broken.err.splitlines()


def test_a_simulated_run_is_kept_shown_and_marked(command: Run, home: Path) -> None:
    done = command("predict", EXAMPLE, *LARGE, "--cluster", "selene", "--simulate", "--json", "--home", home)
    assert done.code == 0
    assert done.document["outcome"] == "completed"
    assert "simulated on a model of selene" in done.document["reason"]
    again = command("show", done.document["id"], "--json", "--home", home).document
    assert again["step_seconds"] == done.document["step_seconds"]
    assert {row["axis"] for row in again["communication"]} >= {"dp", "tp", "pp"}


def test_clusters_that_are_wrong(command: Run, tmp_path: Path) -> None:
    def refused(*words: str, asked: tuple[object, ...]) -> None:
        command("predict", EXAMPLE, *LARGE, *asked).refused(*words)

    refused("cluster='selen'", "selene", asked=("--cluster", "selen"))
    refused("world size=16", "selene has 24 devices", asked=("--cluster", "selene", "--nodes", "3"))
    refused("world size=16", "selene has 8 devices", asked=("--cluster", "selene", "--nodes", "1"))
    refused("mosaic-h100", "bytes_per_second_per_node", "none is made up", asked=("--cluster", "mosaic-h100"))
    refused("--nodes=3", "--cluster", asked=("--nodes", "3"))
    refused("cannot be read", asked=("--cluster", tmp_path / "none.toml"))
    file = tmp_path / "ours.toml"
    file.write_text('[[groups]]\naccelerator = "a100-80gb"\ndevices_per_node = 8\nnetwork = "n"\n')
    refused("ours.groups.0.nodes", "is missing", asked=("--cluster", file))
    refused("ours.groups.0.between", asked=("--cluster", file, "--nodes", "2"))


def test_what_goes_over_links_is_told(command: Run) -> None:
    """Two nodes of eight: tp stays inside, dp crosses; by hand a ring of two ranks sends what it reduces."""
    sets = [*LARGE, "parallel.pp=1", "parallel.dp=2", "parallel.tp=8"]
    asked = ("predict", EXAMPLE, *sets, "--cluster", "dgx-a100", "--nodes", 2)
    traffic = command(*asked, "--json").document["traffic"]
    assert traffic["node_of_device"] == [0] * 8 + [1] * 8
    axes = traffic["axes"]
    assert axes["tp"]["bytes_between_nodes"] == 0
    assert axes["dp"]["bytes_between_nodes"] == pytest.approx(axes["dp"]["bytes"])
    assert axes["dp"]["bytes"] == pytest.approx(16 * axes["dp"]["bytes_of_a_rank"])
    whole = traffic["between_nodes_bytes"]
    assert whole[0][1] + whole[1][0] == pytest.approx(axes["dp"]["bytes"])
    assert traffic["device_bytes_per_second"][0][1] == 25e9, "200 Gbit/s a device, as the catalogue has it"
    said = command(*asked).out
    assert "Sent by the busiest rank in a step, by formula: dp" in said
    assert "A device's link carries 300.0 GB/s inside a node, 25.0 GB/s between nodes." in said


def test_one_device_sends_nothing(command: Run) -> None:
    sets = [*LARGE, "parallel.dp=1", "parallel.tp=1", "parallel.pp=1", "model.preset=350m"]
    assert (
        command("predict", EXAMPLE, *sets, "--cluster", "mi300x-node", "--json").document.get("traffic")
        is None
    )


def test_what_dp_and_tp_divide(command: Run) -> None:
    """A list in brackets is shown as it is typed; where nothing is known it is said why."""
    sets = (
        "parallel.dp=2",
        "parallel.tp=2",
        "parallel.zero_stage=0",
        "parallel.tp_replicated=[attention_output]",
    )
    asked = ("predict", EXAMPLE, "--cluster", "frontier", *sets)
    shown = " ".join(command(*asked).out.split())
    assert "What each axis divides" in shown and "as it is" in shown
    found = command(*asked, "--json").document
    assert found["mesh_signatures"]["now"]["settings"]["parallel.tp_replicated"] == ["attention_output"]
    assert found["mesh_signatures_reason"] == ""
    assert {row["settings"]["parallel.dp"] * row["settings"]["parallel.tp"]
            for row in found["mesh_signatures"]["others"]} == {4}  # fmt: skip
    listed = [row for row in found["mesh_signatures"]["others"] if row["settings"]["parallel.tp_replicated"]]
    assert all(f"[{row['settings']['parallel.tp_replicated'][0]}" in shown for row in listed)
    outer = command(*asked, "outer.method=diloco", "--json").document
    assert outer["mesh_signatures"] is None and "outer loop" in outer["mesh_signatures_reason"]
    assert "is not told: an outer loop" in " ".join(command(*asked, "outer.method=diloco").out.split())
