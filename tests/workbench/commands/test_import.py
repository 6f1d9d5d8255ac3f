"""``import``: another trainer's file becomes a configuration that trains; what is wrong in it is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workbench.conftest import Furnished, Run
from workbench.home import inputs

HF = {"output_dir": "o", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 7,
      "learning_rate": 3e-4, "bf16": True, "max_grad_norm": 0.0, "seed": 9, "report_to": "none"}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "args.json"
    path.write_text(json.dumps(HF))
    return path


def test_it_is_recognised_and_written(command: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "base.yaml"
    done = command("import", file, "--ranks", "2", "--out", out)
    assert done.code == 0, done
    assert "hf, 2 ranks" in done.out
    config = inputs.parse_config(out, [])
    assert (config.parallel.dp, config.batch.micro_batch, config.batch.global_batch) == (2, 4, 24)
    assert (config.train.steps, config.train.learning_rate, config.train.seed) == (7, 3e-4, 9)
    assert (config.precision, config.train.clip_norm) == ("bf16", None)
    assert config.train.weight_decay == 0, "what the trainer does without the key"
    command("import", file, "--out", out).refused("--out", "exists")


def test_the_document_has_what_was_left_out(command: Run, file: Path) -> None:
    file.write_text(json.dumps(HF | {"label_smoothing_factor": 0.1, "lr_scheduler_type": "inverse_sqrt"}))
    document = command("import", file, "--from", "hf", "--set", "model.preset=mini", "--json").document
    assert document["left_out"] == {
        "label_smoothing_factor": 0.1,
        "lr_scheduler_type": "inverse_sqrt",
        "output_dir": "o",
    }
    assert (document["from"], document["ranks"]) == ("hf", 1)
    assert document["checked_against"] == "transformers 5.23.0"
    assert document["config"]["model.preset"] == "mini"
    assert document["config"]["batch.micro_batch"] == 4


def test_a_script_of_megatron_and_a_recipe_are_read_as_text(command: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nARGS=(\n  --num-layers 8 --hidden-size 320\n"
        "  --num-attention-heads 8 --seq-length 256 # tokens\n  --max-position-embeddings 256 --micro-batch-size 2 \\\n"
        "  --global-batch-size 32 --tensor-model-parallel-size 2 --bf16 --recompute-activations\n)\n"
        'torchrun --nproc-per-node 4 --nnodes 2 pretrain_gpt.py "${ARGS[@]}"\n'
    )
    document = command("import", script, "--json").document
    assert document["left_out"] == {}
    config = document["config"]
    assert config["model.ffn_hidden"] == 1280, "four times the hidden size"
    assert (config["parallel.tp"], config["parallel.dp"]) == (2, 4), "of 8 ranks"
    assert (config["model.layers"], config["memory.recompute"], config["precision"]) == (
        8,
        "selective",
        "bf16",
    )
    assert config["batch.global_batch"] == 32
    script.write_text("--num-layers $LAYERS --micro-batch-size 2")
    command("import", script, "--from", "megatron").refused("--num-layers", "$LAYERS", "give its value")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import os\nos.makedirs('never')\ndef mine():\n    config = base()\n"
        "    config.parallelism.tensor_parallel_degree = 2\n    config.training.local_batch_size = 4\n"
        "    config.activation_checkpoint = FullAC.Config()\n    return config\n"
    )
    config = command("import", recipe, "--ranks", "4", "--json").document["config"]
    assert (config["parallel.tp"], config["parallel.dp"], config["batch.micro_batch"]) == (2, 2, 4)
    assert (config["parallel.zero_stage"], config["memory.recompute"]) == (3, "full")
    assert not Path("never").exists()
    recipe.write_text("def mine(config):\n    config.training.steps = int('3')\n")
    command("import", recipe, "--from", "torchtitan").refused("training.steps", "int('3')")


def test_what_is_wrong_is_one_line(command: Run, file: Path, tmp_path: Path) -> None:
    command("import", tmp_path / "none.json").refused("file", "cannot be read")
    command("import", file, "--from", "horovod").refused("--from", "horovod", "deepspeed")
    file.write_text("{")
    command("import", file, "--from", "hf").refused("not valid JSON")
    file.write_text("[1, 2]")
    command("import", file).refused("file", "holds no keys")
    file.write_text(json.dumps(HF | {"max_stepz": 7}))
    command("import", file).refused("max_stepz", "max_steps", "transformers 5.23.0")
    file.write_bytes(b"\xff\xfe\x00")
    command("import", file).refused("not a text file")
    two = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 2}
    file.write_text(json.dumps(two))
    command("import", file, "--ranks", "4").refused("--ranks", "2 ranks")


def test_an_exported_file_comes_back(command: Run, furnished: Furnished, tmp_path: Path) -> None:
    run = next(path.name for path in furnished.home.iterdir() if path.name.endswith("-a7e2"))
    out = tmp_path / "out"
    done = command("export", run, "--to", "hf", "--out", out, "--json", "--home", furnished.home)
    said = json.loads((out / "provenance.json").read_text())
    assert done.document["losses"] == said["losses"] != []
    assert done.document["checked_against"] == said["checked_against"] == "transformers 5.23.0"
    assert done.document["levels"] == said["levels"]
    assert done.document["levels"]["guarded"] == "this export"
    assert said["measured"]["tokens_per_second_interval"]["low"] > 0
    readme = (out / "README.md").read_text()
    assert all(f"`{loss['setting']}`" in readme or f"{loss['setting']}=" in readme for loss in said["losses"])
    again = command("import", out / "training_args.json", "--ranks", "4", "--json")
    assert again.code == 0, again
    assert again.document["left_out"] == {}


def test_a_release_that_is_not_known_here_is_told_by_its_keys(command: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "newer.py"
    recipe.write_text(
        "def mine():\n    config = base()\n    config.training.num_tokens_per_microbatch = 16384\n"
    )
    command("import", recipe).refused(
        "training.num_tokens_per_microbatch=16384", "unknown to torchtitan 0.3.0"
    )
    older = tmp_path / "older.toml"
    older.write_text("[job]\ndump_folder = 'out'\n[training]\nlocal_batch_size = 8\n")
    command("import", older).refused("is TOML, which torchtitan reads up to release 0.2", "tune --command")
    older.write_text("[tool]\nname = 'x'\n")
    command("import", older).refused("sets nothing")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    command("import", script).refused("sets nothing", "give a recipe")
