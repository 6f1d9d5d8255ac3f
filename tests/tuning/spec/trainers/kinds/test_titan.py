"""torchtitan's commands: what stands in a TOML file or a recipe is today's; where a trial's options stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from tuning.spec.study_file import parse
from tuning.spec.trainers.kinds.titan.config_file import settings
from tuning.spec.trainers.tuned_command import TunedCommand

TOML = """
[metrics]
log_freq = 10
[training]
local_batch_size = 4
seq_len = 512
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "never"
[checkpoint]
enable = true
[activation_checkpoint]
mode = "full"
"""
SCRIPT = """#!/usr/bin/bash
NGPU=${NGPU:-"8"}
export LOG_RANK=${LOG_RANK:-0}
%s
torchrun --nproc_per_node=${NGPU} --tee 3 -m torchtitan.train %s "$@"
"""
RECIPES = """
from elsewhere import base as BASE

def usual():
    spec = registry("small")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=2 * 4, seq_len=1024, steps=count()),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        checkpoint=CheckpointManager.Config(enable=True),
        activation_checkpoint=SelectiveAC.Config(),
    )

def larger():
    config = usual()
    config.training.local_batch_size = 16
    config.training.seq_len = length()
    config.checkpoint = CheckpointManager.Config(interval=10)
    return config

def imported():
    config = BASE()
    config.training.seq_len = 64
    return config

def depends():
    config = usual()
    if large():
        config.training.local_batch_size = 32
    return config

def given():
    return depends(large=True)

def circular():
    return circular()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "X.toml").write_text(TOML)
    (tmp_path / "run_train.sh").write_text(
        SCRIPT % ('CONFIG_FILE=${CONFIG_FILE:-"./X.toml"}', "--job.config_file ${CONFIG_FILE}")
    )
    models = tmp_path / "torchtitan" / "models" / "small"
    models.mkdir(parents=True)
    (models / "config_registry.py").write_text(RECIPES)
    (tmp_path / "elsewhere.py").write_text("def base():\n    return C(training=T(local_batch_size=3))\n")
    return tmp_path


def tuned(command: str, folder: Path) -> TunedCommand:
    return TunedCommand({"command": command, "directory": str(folder)})


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 4 -m torchtitan.train --job.config_file X.toml",
        "torchrun --nproc_per_node 4 -m torchtitan.train --job.config-file=./X.toml",
        "CONFIG_FILE=X.toml NGPU=4 ./run_train.sh",
        "NGPU=4 bash run_train.sh",
    ],
)
def test_what_stands_in_a_toml_file_is_today_s(command: str, folder: Path) -> None:
    found = tuned(command, folder)
    assert (found.kind.name, found.today.ranks) == ("torchtitan", 4)
    assert {name: found.has(name) for name in found.default_values} == {
        "micro_batch": 4,
        "tensor_parallel": 2,
        "reshard": "never",
        "recompute": "full",
    }
    assert found.kind.tokens(found.today) == (8, 512), "two data ranks of four"
    file = parse({"name": "s", "trainer": {"command": command, "directory": str(folder)}})
    assert file.config.trainer["tensor_parallel"] == 2 and file.command is not None
    assert file.command.trial_invocation(file.config.trainer).text == (
        f"{command} --training.global_batch_size 8 --metrics.log_freq 1 --checkpoint.no-enable"
    )


def test_an_option_comes_before_the_file(folder: Path) -> None:
    found = tuned(
        "NGPU=4 ./run_train.sh --training.local_batch_size=2 --parallelism.tensor_parallel_degree 1", folder
    )
    assert (found.has("micro_batch"), found.has("tensor_parallel"), found.has("reshard")) == (2, 1, "never")
    assert found.kind.tokens(found.today) == (8, 512)
    assert "--training.local_batch_size=8" in found.with_values({"micro_batch": 8}).text


def test_without_a_number_the_script_says_how_many_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NGPU", raising=False)
    assert tuned("./run_train.sh", folder).today.ranks == 8
    monkeypatch.setenv("NGPU", "2")
    assert tuned("./run_train.sh", folder).today.ranks == 2


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("usual", {"training.local_batch_size": 8, "training.seq_len": 1024, "checkpoint.enable": True,
                   "parallelism.tensor_parallel_degree": 2}),
        ("larger", {"training.local_batch_size": 16, "checkpoint.interval": 10,
                    "parallelism.tensor_parallel_degree": 2}),
        ("imported", {"training.local_batch_size": 3, "training.seq_len": 64}),
        ("depends", {"training.seq_len": 1024, "checkpoint.enable": True,
                     "parallelism.tensor_parallel_degree": 2}),
        ("given", {}),
        ("circular", {}),
        ("missing", {}),
    ],
)  # fmt: skip
def test_a_recipe_is_read_as_text(recipe: str, wanted: dict[str, Any], folder: Path) -> None:
    for module in ("small", "torchtitan.models.small"):
        command = f"torchrun --nproc-per-node 2 -m torchtitan.train --module {module} --config={recipe}"
        assert settings(tuned(command, folder).today) == wanted


def test_a_recipe_is_looked_for_where_python_would(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "mine.py").write_text("def one():\n    return C(training=T(local_batch_size=5))\n")
    found = tuned("PYTHONPATH=more torchrun -m torchtitan.train --module mine --config one", folder)
    assert found.has("micro_batch") == 5
    (folder / "run_train.sh").write_text(
        SCRIPT
        % ('MODULE=${MODULE:-"small"}\nCONFIG=${CONFIG:-"usual"}', "--module ${MODULE} --config ${CONFIG}")
    )
    assert tuned("NGPU=2 ./run_train.sh", folder).has("micro_batch") == 8
    assert tuned("NGPU=2 CONFIG=larger ./run_train.sh", folder).has("micro_batch") == 16


def test_options_stand_before_a_part_that_is_chosen_by_a_word(folder: Path) -> None:
    command = "torchrun --nproc-per-node 4 -m torchtitan.train --module small --config usual"
    found = tuned(f"{command} activation-checkpoint:full", folder)
    assert found.trial_invocation({"reshard": "never"}).text == (
        f"{command} --training.global_batch_size 16 --parallelism.fsdp_reshard_after_forward never "
        "--metrics.log_freq 1 --checkpoint.no-enable activation-checkpoint:full"
    )
    assert "recompute" not in found.default_values, "it is chosen by a word there"


def test_data_ranks_that_are_given_stay(folder: Path) -> None:
    command = "torchrun --nproc-per-node 4 -m torchtitan.train --module small --config usual"
    found = tuned(f"{command} --parallelism.data_parallel_shard_degree 2", folder)
    assert found.refusal({"tensor_parallel": 2}) == ""
    assert "do not make 4 data ranks" in found.refusal({"tensor_parallel": 1})
    copies = tuned(f"{command} --parallelism.data_parallel_replicate_degree 2", folder)
    assert "do not make 1 data ranks" in copies.refusal({"tensor_parallel": 4})


@pytest.mark.parametrize("recipe", ["usual", "unknown"])
def test_one_rank_for_a_model_of_two_is_told_before_anything_runs(recipe: str, folder: Path) -> None:
    command = (
        f"python -m torchtitan.train --module small --config {recipe} --parallelism.tensor_parallel_degree 2"
    )
    words = (
        "cannot run as it stands: .*: 1 rank is no multiple of the 2 that hold one model; mend the command"
    )
    with pytest.raises(InputError, match=words):
        parse({"name": "s", "trainer": {"command": command, "directory": str(folder)}})
