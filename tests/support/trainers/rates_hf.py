"""Reads exported ``training_args.json``, a JSON list of texts, on stdin; prints the learning rates of each one."""

from __future__ import annotations

import json
import sys

import torch
from transformers import get_scheduler


def rates_of(text: str) -> list[float]:
    """Those that Hugging Face's Trainer gives steps."""
    given = json.loads(text)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=given["learning_rate"])
    schedule = get_scheduler(
        given["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=given["warmup_steps"],
        num_training_steps=given["max_steps"],
        scheduler_specific_kwargs=given.get("lr_scheduler_kwargs"),
    )
    rates = []
    for _ in range(given["max_steps"]):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


if __name__ == "__main__":
    print(json.dumps([rates_of(text) for text in json.load(sys.stdin)]))
