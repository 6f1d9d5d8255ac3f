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
    before = bare.config.flat()
    changed = {key for key, value in config.flat().items() if before[key] != value}
    assert changed == {"parallel.zero_stage", "memory.offload", "parallel.reduce_every_micro_batch",
                       "memory.parameters"}  # fmt: skip
    name = "ds.json" if deepspeed == "ds.json" else "deepspeed"
    assert found.left_out == {f"{name}: steps_per_print": 50}


def test_the_names_of_accelerate(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(SPEED | {"train_micro_batch_size_per_gpu": 2}))
    file = tmp_path / "accelerate.yaml"
    inner = {"deepspeed_config_file": "ds.json", "zero3_init_flag": True}
    tree = {"distributed_type": "DEEPSPEED", "num_processes": 4, "deepspeed_config": inner}
    file.write_text(yaml.safe_dump(tree))
    config = importing.read(file, None, None, MODEL).config
    assert (config.parallel.dp, config.parallel.zero_stage, config.memory.offload) == (4, 3, "optimizer")
    assert config.batch.micro_batch == 2
    for key, more in (("mixed_precision", {"mixed_precision": "bf16"}),
                      ("deepspeed_config.zero_stage", {"deepspeed_config": inner | {"zero_stage": 3}})):  # fmt: skip
        file.write_text(yaml.safe_dump(tree | more))
        with pytest.raises(InputError, match="say it in that file") as caught:
            importing.read(file, None, None, MODEL)
        assert caught.value.field == key


def test_what_the_trainer_would_refuse(tmp_path: Path) -> None:
    assert imported(tmp_path, "ds.json", train_micro_batch_size_per_gpu=4).config.batch.micro_batch == 4
    with pytest.raises(InputError) as caught:
        imported(tmp_path, "ds.json", train_micro_batch_size_per_gpu=2)
    assert str(caught.value).startswith(
        "ds.json: train_micro_batch_size_per_gpu=2: is 4 by the file that names it"
    )
    with pytest.raises(InputError, match="stage"):
        imported(tmp_path, "ds.json", zero_optimization={"stage": 7})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("gradient_accumulation_steps", 4, "is 2 by"),
        ("train_batch_size", 32, "is 64 by"),
        ("gradient_clipping", 0.0, "is 1.0 by"),
        ("bf16", {"enabled": False}, "is True by"),
        ("scheduler", {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}, "is 1 by"),
    ],
)
def test_what_is_said_twice(tmp_path: Path, key: str, value: object, wanted: str) -> None:
    """Also where it is what DeepSpeed has anyway."""
    with pytest.raises(InputError, match=wanted) as caught:
        imported(tmp_path, "ds.json", **{key: value})
    assert key in caught.value.field


def test_what_neither_says_is_deepspeeds(tmp_path: Path) -> None:
    """It clips gradients at 1.0, whatever the Trainer was told: that only fills in "auto"."""
    speed = {
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8},
        "train_micro_batch_size_per_gpu": "auto",
    }
    arguments = ARGUMENTS | {"max_grad_norm": 0.25, "bf16": False, "deepspeed": speed}
    found = importing.read_text(importing._find_format("hf"), json.dumps(arguments), 8, MODEL)
    assert (found.config.train.clip_norm, found.config.precision) == (1.0, "fp32")
    assert found.config.overlap.bucket_mb == 5e8 * 4 / 2**20
    assert found.left_out == {"max_grad_norm": 0.25}


def test_what_is_left_to_the_arguments(tmp_path: Path) -> None:
    """A schedule without a fall holds, too; the batch of a step says how many ranks there are."""
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}}
    speed = SPEED | {"train_batch_size": 48, "gradient_clipping": "auto", "scheduler": schedule}
    text = json.dumps(ARGUMENTS | {"max_grad_norm": 0.25, "warmup_steps": 10, "deepspeed": json.dumps(speed)})
    found = importing.read_text(importing._find_format("hf"), text, None, MODEL)
    assert (found.ranks, found.config.parallel.dp, found.config.batch.global_batch) == (6, 6, 48)
    assert (found.config.train.learning_rate_schedule, found.config.train.learning_rate_warmup) == (
        "constant",
        10,
    )
    assert found.config.train.clip_norm == 0.25


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave one of them out"):
        text = json.dumps(ARGUMENTS | {"deepspeed": SPEED, "fsdp": "full_shard"})
        importing.read_text(importing._find_format("hf"), text, 8, MODEL)
    with pytest.raises(InputError, match="zero_optimization: is missing"):
        imported(tmp_path, {"train_batch_size": "auto"})
    with pytest.raises(InputError, match="without train_batch_size"):
        imported(tmp_path, {"zero_optimization": {"stage": 2}})


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="put it beside the file that names it"):
        imported(tmp_path, "gone.json")
    with pytest.raises(InputError, match="only this one was sent"):
        importing.read_upload("args.json", json.dumps(ARGUMENTS | {"deepspeed": "ds.json"}).encode(), "hf", 8)
