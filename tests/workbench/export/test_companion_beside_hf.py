"""Files that name DeepSpeed's, drawn at random: an import makes of both what Hugging Face's code trains with."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.errors import InputError
from tests.support.drawn import SEED
from tests.support.trainers.companion_hf import MICRO_BATCH, NAME
from tests.support.trainers.environments import asked, made, require
from tests.support.trainers.results import noted
from workbench.export import importing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MANY = 60
BATCH = ("micro_batch", "accumulation", "global_batch")


@pytest.fixture(scope="module", autouse=True)
def _there() -> None:
    require("hf")
    require("deepspeed")


def _deepspeed(pick: random.Random, own: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's file; most of what it says twice is ``own``, or left to the other file."""

    def either(key: str, *others: Any) -> Any:
        wrong = pick.choice(others) if pick.random() < 0.08 else own[key]
        return pick.choice(["auto", "auto", wrong, None])

    zero: dict[str, Any] = {
        "stage": pick.choice([0, 1, 2, 3, 3, "auto"]),
        "reduce_bucket_size": pick.choice(["auto", 5e8]),
    }
    if zero["stage"] and pick.random() < 0.5:
        zero["offload_optimizer"] = {"device": pick.choice(["cpu", "none", "auto"])}
    tree: dict[str, Any] = {
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": either("micro", 2, 8),
        "gradient_accumulation_steps": either("accumulation", 2, 8),
        "train_batch_size": either("whole", 48),
        "gradient_clipping": either("clip", 0.0, 0.5),
        "steps_per_print": 10,
    }
    if (enabled := either("bf16", True, False)) is not None:
        tree["bf16"] = {"enabled": enabled}
    if pick.random() < 0.5:
        lr, decay = either("rate", 1e-3), either("decay", 0.1)
        params = {
            "lr": own["rate"] if lr is None else lr,
            "weight_decay": own["decay"] if decay is None else decay,
        }
        tree["optimizer"] = {"type": "AdamW", "params": params}
    if pick.random() < 0.05:
        del tree["zero_optimization"]
    return {key: value for key, value in tree.items() if value is not None}


def _of_hf(pick: random.Random) -> dict[str, Any]:
    own: dict[str, Any] = {"micro": pick.choice([1, 4]), "accumulation": pick.choice([1, 4])}
    own |= {"clip": pick.choice([1.0, 0.3]), "bf16": pick.random() < 0.6}
    own |= {"rate": pick.choice([5e-5, 2e-4]), "decay": pick.choice([0.0, 0.01])}
    ranks = pick.choice([2, 4])
    own["whole"] = own["micro"] * own["accumulation"] * ranks
    deepspeed = _deepspeed(pick, own)
    arguments = {"output_dir": "out", "per_device_train_batch_size": own["micro"], "max_steps": 50,
                 "gradient_accumulation_steps": own["accumulation"], "max_grad_norm": own["clip"],
                 "bf16": own["bf16"], "learning_rate": own["rate"], "weight_decay": own["decay"],
                 "deepspeed": pick.choice([NAME, deepspeed])}  # fmt: skip
    return {"form": "hf", "text": json.dumps(arguments), "deepspeed": deepspeed, "ranks": ranks}


def _of_accelerate(pick: random.Random) -> dict[str, Any]:
    ranks = pick.choice([2, 4])
    own = {"micro": MICRO_BATCH, "accumulation": 1, "clip": 1.0, "bf16": False, "rate": 1e-3, "decay": 0.0}
    deepspeed = _deepspeed(pick, own | {"whole": MICRO_BATCH * ranks})
    if deepspeed.get("train_micro_batch_size_per_gpu") == "auto" and "train_batch_size" in deepspeed:
        deepspeed["train_batch_size"] = "auto"  # else it has to be what the script makes of it
    deepspeed.pop("optimizer", None)  # its values would be those of the script
    inner: dict[str, Any] = {"deepspeed_config_file": NAME, "zero3_init_flag": False}
    tree = {"distributed_type": "DEEPSPEED", "num_processes": ranks, "deepspeed_config": inner}
    if pick.random() < 0.15:
        inner |= pick.choice(
            [{"zero_stage": 2}, {"gradient_accumulation_steps": 4}, {"gradient_clipping": 0.5}]
        )
    if pick.random() < 0.15:
        tree["mixed_precision"] = pick.choice(["bf16", "no"])
    return {"form": "accelerate", "text": yaml.safe_dump(tree), "deepspeed": deepspeed, "ranks": ranks}


def _ours(given: dict[str, Any], folder: Path) -> dict[str, Any] | str:
    """As ``companion_hf.resolved`` says it, of our import."""
    (folder / NAME).write_text(json.dumps(given["deepspeed"]), encoding="utf-8")
    file = folder / "given"
    file.write_text(given["text"], encoding="utf-8")
    try:
        config = importing.read(file, given["form"], given["ranks"], {"model.preset": "tiny"}).config
    except InputError as problem:
        return str(problem)
    batch = config.batch
    accumulation = batch.global_batch // (batch.micro_batch * config.parallel.dp)
    return {"stage": config.parallel.zero_stage,
            "offload": "cpu" if config.memory.offload == "optimizer" else "none",
            "micro_batch": batch.micro_batch, "accumulation": accumulation, "global_batch": batch.global_batch,
            "bf16": config.precision == "bf16" and config.memory.parameters == "bf16",
            "clip_norm": config.train.clip_norm or 0.0, "learning_rate": config.train.learning_rate,
            "weight_decay": config.train.weight_decay}  # fmt: skip


@pytest.mark.parametrize("form", ["hf", "accelerate"])
def test_both_files_are_what_is_trained_with(form: str, tmp_path: Path) -> None:
    pick = random.Random(f"{SEED} {form}")
    given = [{"hf": _of_hf, "accelerate": _of_accelerate}[form](pick) for _ in range(MANY)]
    (packages,) = made("deepspeed").parents[1].glob("lib/python*/site-packages")
    theirs = json.loads(asked("hf", "companion_hf", str(packages), given=json.dumps(given)).splitlines()[-1])
    taken, wrong = 0, []
    for one, trained in zip(given, theirs, strict=True):
        own = _ours(one, tmp_path)
        if isinstance(trained, str) or isinstance(own, str):
            wrong += [] if isinstance(trained, str) and isinstance(own, str) else [(one, trained, own)]
            continue
        taken += 1
        by_script = form == "accelerate" and one["deepspeed"].get("train_micro_batch_size_per_gpu") == "auto"
        different = {
            key: (value, own[key])
            for key, value in trained.items()
            if value not in (None, own[key]) and not (by_script and key in BATCH)
        }
        wrong += [(one, different)] if different else []
    assert wrong == []
    assert 10 < taken < MANY - 5
    noted(
        form,
        "parsed",
        "files that name DeepSpeed's",
        f"{taken} of {MANY} taken, as trained; the others refused",
    )
