"""Trains the small Llama with accelerate as an exported ``accelerate.yaml`` says; each rank tells.

Arguments: the file, sequences of a micro-batch, micro-batches of a step, "replaced". The environment is that which
accelerate's own launcher makes of the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.support.trainers import small_llama
from tests.support.trainers.accelerate import launched

RATE = 1e-3

if __name__ == "__main__":
    kept = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in os.environ}
    address = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    os.environ |= launched(Path(sys.argv[1]))[1] | kept | address
    from accelerate import Accelerator

    micro, accumulation = int(sys.argv[2]), int(sys.argv[3])
    if "replaced" in sys.argv:
        small_llama.replace_backend()
    accelerator = Accelerator(gradient_accumulation_steps=accumulation)
    model = small_llama.llama()
    loader = torch.utils.data.DataLoader(list(small_llama.text()), batch_size=micro)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=RATE), loader
    )
    losses, parts, steps = [], [], 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        parts.append(accelerator.reduce(loss.detach().clone(), "mean").item())
        if accelerator.sync_gradients:
            losses.append(sum(parts) / len(parts))
            parts, steps = [], steps + 1
            small_llama.step_done()
        if steps == small_llama.SHAPE.steps:
            break
    small_llama.tell(
        world=accelerator.num_processes,
        wrapper=type(model).__name__,
        steps=steps,
        losses=losses,
        **small_llama.sharing(model.parameters()),
    )
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
