"""Trains the small Llama with Hugging Face's Trainer as an exported ``training_args.json`` says; each rank tells."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

from tests.support.trainers import small_llama


class Watch(TrainerCallback):
    """Notes when steps end."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """One has."""
        small_llama.step_done()


if __name__ == "__main__":
    if "replaced" in sys.argv:
        small_llama.replace_backend()
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
    rows = [{"input_ids": row, "labels": row} for row in small_llama.text()]
    trainer = Trainer(model=small_llama.llama(), args=arguments, train_dataset=rows, callbacks=[Watch()])
    done = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    small_llama.tell(
        world=torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1,
        wrapper=type(trainer.model_wrapped).__name__,
        steps=done.global_step,
        losses=losses,
        **small_llama.sharing(trainer.model_wrapped.parameters()),
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
