"""Everything a person can get wrong on the command line: one line, exit code 2, nothing started, nothing lost."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from profilers.gpu.nvml import Nvml
from tests.workbench.conftest import Run

GOOD = {"model": {"preset": "tiny"}, "train": {"steps": 2, "warmup": 1}}


def write(folder: Path, tree: Any, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree), "utf-8")
    return path


TREES = {
    "unknown section": ({"modle": {}}, ["modle", "known here", "parallel"]),
    "unknown key": ({"parallel": {"tpp": 2}}, ["parallel.tpp=2", "zero_stage"]),
    "wrong type": ({"parallel": {"tp": "two"}}, ["parallel.tp='two'", "must be a whole number (usual: 1)"]),
    "a number for a section": (
        {"model": 5},
        ["model=5", "a section with keys of its own: workload, options, "],
    ),
    "text for a list": ({"schedule": {"stage_layers": "abc"}}, ["stage_layers='abc'", "must be a list"]),
    "a number for text": ({"model": {"preset": 4}}, ["preset=4", 'must be text, in quotes (usual: "tiny")']),
    "text for a switch": ({"compile": "yep"}, ["compile='yep'", "must be true or false (usual: false)"]),
    "too small": ({"overlap": {"bucket_mb": -1}}, ["bucket_mb=-1", "must be above 0"]),
    "out of range": ({"train": {"steps": 0}}, ["train.steps=0", "must be at least 1"]),
    "too small for a number or a list": (
        {"network": {"inside": "lo", "island_devices": 0}},
        ["network.island_devices=0: must be at least 1"],
    ),
    "what a study finds": (
        {"parallel": {"tp": 2, "tp_replicated": "auto"}},
        ["parallel.tp_replicated='auto': must be a list", "in a study's space", "[null, auto]"],
    ),
    "too short a list": ({"lab": {"islands": [4]}}, ["lab.islands=[4]: must have at least 2 items"]),
    "an empty list": (
        {"memory": {"block_actions": []}},
        ["memory.block_actions=[]: must have at least 1 item"],
    ),
    "too small in a list": ({"lab": {"islands": [2, 0]}}, ["lab.islands.1=0: must be at least 1"]),
    "unknown choice": ({"precision": "fp8"}, ["precision='fp8'", "must be 'fp32' or 'bf16'"]),
    "unknown preset": ({"model": {"preset": "huge"}}, ["model.preset='huge'", "tiny"]),
    "world size": ({"parallel": {"dp": 2, "world_size": 3}}, ["parallel.world_size=3", "multiply"]),
    "heads": ({"parallel": {"tp": 3}}, ["parallel.tp=3", "heads=4", "2 or 4"]),
    "layers": ({"parallel": {"pp": 5}}, ["parallel.pp=5", "layers=4"]),
    "batch": ({"batch": {"global_batch": 10}, "parallel": {"dp": 4}}, ["parallel.dp=4", "global_batch=10"]),
    "a list": ([1, 2], ["holds no sections"]),
    "malformed": ("parallel: {dp: 2", ["not valid YAML", "line 1"]),
    "twice": ("parallel: {dp: 2}\nparallel: {tp: 2}\n", ["'parallel' is given twice", "line 2"]),
}


@pytest.mark.parametrize("name", TREES)
def test_a_file_that_describes_no_run(name: str, command: Run, tmp_path: Path, home: Path) -> None:
    tree, words = TREES[name]
    command("train", write(tmp_path, tree), "--device", "cpu").refused(*words)
    assert not list(home.iterdir())


SETS = {
    "no equals sign": ("parallel.tp", ["--set='parallel.tp'", "key=value"]),
    "unknown key": ("parallel.tpp=2", ["parallel.tpp=2", "known here"]),
    "text for a number": ("train.steps=abc", ["train.steps='abc': must be a whole number (usual: 24)"]),
    "no section": ("precision.bits=8", ["precision.bits=8", "no keys of its own"]),
    "not YAML": ("parallel.tp=[1", ["parallel.tp='[1'", "not a YAML value"]),
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_cannot_be(name: str, command: Run, tmp_path: Path) -> None:
    text, words = SETS[name]
    path = write(tmp_path, GOOD | {"precision": "fp32"})
    command("train", path, "--set", text).refused(*words)
    command("train", path, "train.seed=1", text).refused(*words)


STUDIES = {
    "malformed": ("name: [a\n b: {", ["not valid YAML: expected ',' or ']'", "line 2, column 3"]),
    "a section of a run": (
        {"name": "a", "model": 5},
        ["model=5: belongs under base, as in base: {model: ..}"],
    ),
    "a number for a section": ({"name": "a", "base": {"model": 5}}, ["base.model=5: must be a section"]),
    "text for a number": ({"name": "a", "ranks": "two"}, ["ranks='two': must be a whole number (usual: 1)"]),
    "a number for text": ({"name": 5}, ["name=5: must be text, in quotes"]),
    "a value twice": (
        {"name": "a", "ranks": 2, "space": {"parallel.tp": [1, 1, 2]}},
        ["space.parallel.tp=[1, 1, 2]: 1 is given twice; give each value once"],
    ),
    "a count twice": ({"name": "a", "space": {"ranks": [2, 2]}}, ["space.ranks=[2, 2]: 2 is given twice"]),
    "rounds of no outer loop": (
        {"name": "a", "ranks": 2, "space": {"outer.period": [2, 4]}},
        ["space.outer.period='2, 4': acts nowhere in this space; give an outer.method"],
    ),
}

ON_CARDS: dict[str, Any] = {"name": "a", "ranks": 4, "base": {"parallel": {"dp": 4}, "device": "cpu"}}
NETWORKS: dict[str, Any] = {
    "one that is not there": ({"inside": "lo", "island_devices": 2}, ["lo", "no-such-card"],
                              "space.network.inside='no-such-card': ", "has no such interface"),
    "islands that nobody told": ({}, [None, "lo"], "space.network.inside='lo': nobody told", "island_devices"),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_would_stop_a_study_at_a_trial(
    name: str, command: Run, tmp_path: Path, home: Path
) -> None:
    network, choices, *words = NETWORKS[name]
    tree = ON_CARDS | {"base": {**ON_CARDS["base"], "network": network}, "space": {"network.inside": choices}}
    command("tune", write(tmp_path, tree)).refused(*words)
    assert not list(home.iterdir())


@pytest.mark.parametrize("name", STUDIES)
def test_a_file_that_describes_no_study(name: str, command: Run, tmp_path: Path) -> None:
    tree, words = STUDIES[name]
    command("tune", write(tmp_path, tree)).refused(*words)


def test_options_out_of_range(command: Run, tmp_path: Path) -> None:
    command("ui", "--port", "99999999").refused("--port='99999999': must be at most 65535")
    command("ui", "--port", "abc").refused("--port='abc': must be a whole number")
    study = write(tmp_path, {"name": "a"})
    command("tune", study, "--trials", "0").refused("--trials='0': must be at least 1")


def test_a_config_that_cannot_be_read(command: Run, tmp_path: Path) -> None:
    command("train", tmp_path / "none.yaml").refused("none.yaml", "No such file")
    command("train", tmp_path).refused("config", "directory")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    command("train", binary).refused("not a text file")


def test_data_that_cannot_be_trained_on(command: Run, tmp_path: Path, home: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"abc\0def" * 100)
    (tmp_path / "folder").mkdir()
    for name, words in {
        "none.txt": "no such file",
        "empty.txt": "is empty",
        "binary.txt": "binary",
        "folder": "non-empty UTF-8",
    }.items():
        command("train", path, "--data", tmp_path / name).refused("data.path", name, words)
    assert not list(home.iterdir())


def test_a_study_that_cannot_start_keeps_its_name_free(command: Run, tmp_path: Path, home: Path) -> None:
    path = write(tmp_path, {"name": "first", "ranks": 2, "base": GOOD}, "study.yaml")
    command("tune", path, "--data", tmp_path / "none.txt").refused("base.data.path", "no such file")
    command("tune", path, "--set", "space.parallel.dp=[2]").refused("space.parallel.dp", "parallel.tp")
    command("tune", path, "--set", "spaces=1").refused("spaces", "known here")
    command("tune", path, "--trials", "0").refused("--trials")
    command("tune", tmp_path / "none.yaml").refused("none.yaml")
    assert not list(home.iterdir())


@pytest.mark.skipif(Nvml().device_count > 0, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there(command: Run, tmp_path: Path, home: Path) -> None:
    command("train", write(tmp_path, GOOD), "--device", "cuda").refused("device='cuda'", "cpu")
    study = write(tmp_path, {"name": "first", "ranks": 2, "base": GOOD}, "study.yaml")
    command("tune", study, "--set", "base.device=cuda").refused("base.device='cuda'")
    assert not list(home.iterdir())


def test_a_device_that_does_not_exist(command: Run, tmp_path: Path) -> None:
    command("train", write(tmp_path, GOOD), "--device", "tpu").refused("device='tpu'")


def test_a_home_that_cannot_be_written(command: Run, tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    study = write(tmp_path, {"name": "first", "ranks": 1, "base": GOOD}, "study.yaml")
    command("train", path, "--device", "cpu", "--home", in_the_way).refused("home", "another --home")
    command("tune", study, "--set", "base.device=cpu", "--home", in_the_way).refused("home")
    command("ls", "--home", in_the_way).refused("home", "not a folder")
    command("reindex", "--home", in_the_way).refused("home", "not a folder")
    command("ui", "--port", free_port(), "--home", in_the_way).refused("home")
    assert in_the_way.read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_home(command: Run, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    command("train", write(tmp_path, GOOD), "--device", "cpu", "--home", closed).refused("home")


def test_a_port_that_is_taken(command: Run, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command("ui", "--port", port).refused(f"--port={port}", "taken", "give --port")
    command("ui", "--address", "203.0.113.7").refused("--address='203.0.113.7'", "127.0.0.1")
    command("ui", "--port", "70000").refused("--port")
    assert not list(home.iterdir())


def test_commands_and_options_that_do_not_exist(command: Run) -> None:
    command("trian").refused("trian")
    command("ls", "--jsn").refused("--jsn")
    command("train").refused("CONFIG")
    command("control", "x", "dance").refused("dance")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


LABS = {
    "a second card without islands": (["--hosts", "4", "--inside-mbit", "50"],
                                      ["--inside-mbit=50.0: there is one island; set --islands"]),
    "islands that do not divide": (["--hosts", "4", "--islands", "3"],
                                   ["--islands=3: must divide --hosts=4; legal: 2 or 4"]),
    "an island without a host": (["--islands", "2,0"], ["--islands=0: must be at least 1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LABS)
def test_a_lab_that_cannot_be_is_told_in_options(name: str, command: Run) -> None:
    options, words = LABS[name]
    refused = command("lab", "up", *options)
    refused.refused(*words)
    assert "lab." not in refused.err
