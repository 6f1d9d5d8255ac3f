"""``torchrun ... hf_train.py TRAINING_ARGUMENTS``: a small Llama of random weights trained by Hugging Face's Trainer on
made-up tokens. ``BAD`` in the environment is what goes wrong in rank 1 at the seventh step. With ``SHARDS_ON_CPUS`` one
function of accelerate is replaced, so that FSDP2 has ranks on CPUs; each rank then notes what wraps its model.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import (  # type: ignore[import-not-found]
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TOKENS, LENGTH = 512, 128
#: It needs this repository in PYTHONPATH.
SHARDS = bool(os.environ.get("SHARDS_ON_CPUS"))
if SHARDS:
    from tests.support.trainers import small_llama


class Tokens(Dataset[dict[str, Any]]):
    """Random ones, the same in every run."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int) -> dict[str, Any]:
        drawn = torch.Generator().manual_seed(place)
        row = torch.randint(0, TOKENS, (LENGTH,), generator=drawn)
        return {"input_ids": row, "labels": row}


class Wrapped(TrainerCallback):  # type: ignore[misc]
    """Notes how the model of a rank is shared with others."""

    trainer: Trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 1:
            wrapped = self.trainer.model_wrapped
            seen = {"world": dist.get_world_size(), "wrapper": type(wrapped).__name__}
            small_llama.note(**seen, **small_llama.sharing(wrapped.parameters()))


class Bad(TrainerCallback):  # type: ignore[misc]
    """Notes when steps end, in the file ``STEP_TIMES``; goes wrong in one rank alone."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if (noted := os.environ.get("STEP_TIMES")) and os.environ.get("RANK") == "0":
            with Path(noted).open("a") as file:
                file.write(f"{time.monotonic()}\n")

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step != 6 or os.environ.get("RANK") != "1":
            return
        match os.environ.get("BAD"):
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                time.sleep(1000)
            case "oom":
                torch.empty(10**15)


def main() -> None:
    """Train."""
    if SHARDS:
        small_llama.replace_backend()
    (asked,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=TOKENS, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4
    )
    trainer = Trainer(model=LlamaForCausalLM(shape), args=asked, train_dataset=Tokens(), callbacks=[Bad()])
    if SHARDS:
        watch = Wrapped()
        watch.trainer = trainer
        trainer.add_callback(watch)
    trainer.train()


if __name__ == "__main__":
    main()
