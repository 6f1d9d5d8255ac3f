"""A trainer's file that names DeepSpeed's, or has it within: both together are what the trainer does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.errors import InputError
from workbench.export import importing

ARGUMENTS: dict[str, Any] = {
    "output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True,
    "max_steps": 100, "learning_rate": 1e-4,
}  # fmt: skip
SPEED: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 50,
}
MODEL = {"model.preset": "tiny"}


def imported(folder: Path, deepspeed: object, **speed: object) -> importing.ImportResult:
    (folder / "ds.json").write_text(json.dumps(SPEED | speed))
    file = folder / "args.json"
    file.write_text(json.dumps(ARGUMENTS | {"deepspeed": deepspeed}))
    return importing.read(file, "hf", 8, MODEL)


@pytest.mark.parametrize("deepspeed", ["ds.json", SPEED], ids=["named", "within"])
def test_what_it_says_holds(tmp_path: Path, deepspeed: object) -> None:
    found = imported(tmp_path, deepspeed)
    config, bare = (
        found.config,
        importing.read_text(importing._find_format("hf"), json.dumps(ARGUMENTS), 8, MODEL),
    )
    assert (config.parallel.zero_stage, config.memory.offload) == (3, "optimizer")
    assert (config.batch.micro_batch, config.batch.global_batch, config.precision) == (4, 64, "bf16")
    assert bare.config.parallel.zero_stage == 0
    changed = {key for key, value in found.values.items() if bare.values.get(key) != value}
    assert changed == {"parallel.zero_stage", "memory.offload", "parallel.reduce_every_micro_batch"}
    name = "ds.json" if deepspeed == "ds.json" else "deepspeed"
    assert found.left_out == {f"{name}: steps_per_print": 50}


def test_the_names_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(SPEED | {"train_micro_batch_size_per_gpu": 2}))
    file = tmp_path / "accelerate.yaml"
    inner = {"deepspeed_config_file": "ds.json", "zero3_init_flag": True}
    tree = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 4,
        "mixed_precision": "bf16",
        "deepspeed_config": inner,
    }
    file.write_text(yaml.safe_dump(tree))
    config = importing.read(file, None, None, MODEL).config
    assert (config.parallel.dp, config.parallel.zero_stage, config.memory.offload) == (4, 3, "optimizer")
    assert config.batch.micro_batch == 2


def test_what_the_trainer_would_refuse(tmp_path: Path) -> None:
    assert imported(tmp_path, "ds.json", train_micro_batch_size_per_gpu=4).config.batch.micro_batch == 4
    with pytest.raises(InputError) as caught:
        imported(tmp_path, "ds.json", train_micro_batch_size_per_gpu=2)
    assert str(caught.value).startswith("ds.json: batch.micro_batch=2: is 4 in the file that names it")
    with pytest.raises(InputError, match="stage"):
        imported(tmp_path, "ds.json", zero_optimization={"stage": 7})


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="put it beside the file that names it"):
        imported(tmp_path, "gone.json")
    with pytest.raises(InputError, match="only this one was sent"):
        importing.read_upload("args.json", json.dumps(ARGUMENTS | {"deepspeed": "ds.json"}).encode(), "hf", 8)
