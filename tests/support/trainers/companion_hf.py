"""Files that name DeepSpeed's, as Hugging Face's Trainer and accelerate read them, and DeepSpeed what they hand over.

``python -m tests.support.trainers.companion_hf PACKAGES`` has DeepSpeed's packages in that folder, reads a JSON list of
{"form", "text", "deepspeed", "ranks"} on stdin and prints of each what is trained with, or the words of a refusal.
Ranks, a GPU that has bf16, and the launcher's start are stood in for; so is the script of accelerate's file, which asks
for ``MICRO_BATCH`` sequences and no accumulation.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

#: The file that is named, beside the one that names it.
NAME = "ds.json"
MICRO_BATCH, STEPS, CLIP_NORM, HIDDEN = 2, 100, 1.0, 64


def of_hf(text: str, ranks: int) -> dict[str, Any]:
    """What Hugging Face's Trainer trains with."""
    import torch
    from transformers import HfArgumentParser, TrainingArguments

    Path("args.json").write_text(text, encoding="utf-8")
    stood_in = {"world_size": ranks, "device": torch.device("cpu"), "n_gpu": 1}
    places = {name: property(lambda _, value=value: value) for name, value in stood_in.items()}
    with mock.patch.multiple(TrainingArguments, **places):
        (parsed,) = HfArgumentParser(TrainingArguments).parse_json_file("args.json")
        plugin = parsed.deepspeed_plugin
        plugin.set_mixed_precision(parsed.mixed_precision)
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
        steps = parsed.max_steps if parsed.max_steps > 0 else STEPS
        plugin.hf_ds_config.trainer_config_finalize(parsed, model, steps)
    trained = trained_with(_filled(plugin, parsed.per_device_train_batch_size, ranks), ranks)
    # Its own loop deals out batches and says where a step ends, whatever DeepSpeed was told.
    micro, accumulation = parsed.per_device_train_batch_size, parsed.gradient_accumulation_steps
    batch = {"micro_batch": micro, "accumulation": accumulation, "global_batch": micro * accumulation * ranks}
    return trained | batch


def of_accelerate(text: str, ranks: int) -> dict[str, Any]:
    """What accelerate trains with."""
    from accelerate.commands import launch
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    Path("accelerate.yaml").write_text(text, encoding="utf-8")
    parser = launch.launch_command_parser()
    started: list[Any] = []
    with mock.patch.object(launch, "deepspeed_launcher", started.append):
        launch.launch_command(parser.parse_args(["--config_file", "accelerate.yaml", "train.py"]))
    (arguments,) = started
    assert arguments.num_processes == ranks
    with mock.patch.dict(os.environ, prepare_deepspeed_cmd_env(arguments)[1]):
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(os.environ["ACCELERATE_MIXED_PRECISION"])
    return trained_with(_filled(plugin, MICRO_BATCH, ranks), ranks)


def _filled(plugin: Any, micro_batch: int, ranks: int) -> dict[str, Any]:
    """With what accelerate's ``prepare`` puts in place of words that are left."""
    plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=1)
    wanted: dict[str, Any] = {"gradient_clipping": CLIP_NORM,
                              "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
                              "zero_optimization.reduce_bucket_size": HIDDEN**2,
                              "zero_optimization.stage3_prefetch_bucket_size": HIDDEN**2,
                              "zero_optimization.stage3_param_persistence_threshold": 10 * HIDDEN}  # fmt: skip
    if not plugin.is_auto("train_micro_batch_size_per_gpu"):
        micro_batch = plugin.get_value("train_micro_batch_size_per_gpu")
    if micro_batch:
        sequences = micro_batch * plugin.get_value("gradient_accumulation_steps") * ranks
        wanted |= {"train_micro_batch_size_per_gpu": micro_batch, "train_batch_size": sequences}
    plugin.deepspeed_config_process(must_match=False, **wanted)
    config: dict[str, Any] = plugin.deepspeed_config
    return config


def trained_with(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What DeepSpeed makes of it."""
    from deepspeed.runtime import config as code

    code.dist.get_rank = lambda *_: 0
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: ranks)
    parsed = code.DeepSpeedConfig(config, mpu)
    offload = parsed.zero_config.offload_optimizer
    optimizer = parsed.optimizer_params or {}
    return {
        "stage": int(parsed.zero_config.stage),
        "offload": "cpu" if offload is not None and offload.device == "cpu" else "none",
        "micro_batch": parsed.train_micro_batch_size_per_gpu,
        "accumulation": parsed.gradient_accumulation_steps,
        "global_batch": parsed.train_batch_size,
        "bf16": bool(parsed.bfloat16_config.enabled),
        "clip_norm": parsed.gradient_clipping,
        "learning_rate": optimizer.get("lr"),
        "weight_decay": optimizer.get("weight_decay"),
    }


def resolved(given: dict[str, Any]) -> dict[str, Any] | str:
    """What a pair of files is trained with; words where somebody refuses it."""
    read = {"hf": of_hf, "accelerate": of_accelerate}[given["form"]]
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            Path(NAME).write_text(json.dumps(given["deepspeed"]), encoding="utf-8")
            return read(given["text"], given["ranks"])
        except (ValueError, AssertionError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            os.chdir(before)


def main() -> None:
    """Answer."""
    sys.path.append(sys.argv[1])
    import torch
    from transformers import training_args

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    training_args.is_torch_bf16_gpu_available = lambda: True
    given = json.load(sys.stdin)
    with mock.patch.object(torch.cuda, "device_count", lambda: 8):
        answers = [resolved(one) for one in given]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
