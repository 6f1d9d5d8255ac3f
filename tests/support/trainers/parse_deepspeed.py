"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what DeepSpeed says against each, "" if nothing.

What it understood has to be what the file says. Process groups are stood in for: the number of ranks is all that is
asked of them.
"""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

from deepspeed.runtime import config as code
from deepspeed.runtime.config import DeepSpeedConfig

#: Its names of optimizers; one of torch's has torch's.
_NAMES = {"adamw": "AdamW", "lamb": "Lamb", "SGD": "SGD"}


def problem(text: str, ranks: int) -> str:
    """What is wrong with a file."""
    given = json.loads(text)
    tp = given.get("tensor_parallel", {}).get("autotp_size", 1)
    cp = given.get("sequence_parallel_size", 1)
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: ranks // (tp * cp))
    try:
        parsed = DeepSpeedConfig(given, mpu)
    except Exception as error:
        return repr(error)
    found: dict[str, Any] = {
        "train_batch_size": parsed.train_batch_size,
        "train_micro_batch_size_per_gpu": parsed.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": parsed.gradient_accumulation_steps,
        "gradient_clipping": parsed.gradient_clipping,
        "zero_optimization": parsed.zero_config.model_dump(by_alias=True, mode="json"),
        "bf16": {"enabled": parsed.bfloat16_config.enabled},
        "torch_autocast": {"enabled": parsed.torch_autocast_enabled,
                           "dtype": str(parsed.torch_autocast_dtype).removeprefix("torch.")},
        "optimizer": {"type": _NAMES.get(str(parsed.optimizer_name)), "params": parsed.optimizer_params},
        "scheduler": {"type": parsed.scheduler_name, "params": parsed.scheduler_params},
        "communication_data_type": {"torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(
            str(parsed.communication_data_type)),
        "tensor_parallel": {"autotp_size": parsed.tensor_parallel_config.autotp_size},
        "sequence_parallel_size": cp,
        "zero_allow_untested_optimizer": parsed.zero_allow_untested_optimizer,
    }  # fmt: skip
    for key, value in given.items():
        if isinstance(value, dict):
            wrong = {name: one for name, one in value.items() if not _within(one, found[key].get(name))}
        else:
            wrong = {} if found[key] == value else {key: found[key]}
        if wrong:
            return f"{key}: {found[key]!r} is not {value!r}"
    return ""


def _within(given: object, found: object) -> bool:
    if isinstance(given, dict) and isinstance(found, dict):
        return all(_within(value, found.get(key)) for key, value in given.items())
    return given == found


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    code.dist.get_rank = lambda *_: 0
    print(json.dumps([problem(one["text"], one["ranks"]) for one in json.load(sys.stdin)]))
