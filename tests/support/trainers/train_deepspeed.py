"""Trains a small Llama of torch alone with DeepSpeed as an exported ``ds_config.json`` says; each rank tells.

It ends its engine by itself: without that ZeRO-3 sometimes dies after the last step (0.19.8).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from torch.nn import functional

from benchmarks._plain import PlainDecoder, Sizes
from tests.support.trainers import small_llama

if __name__ == "__main__":
    config = json.loads(Path(sys.argv[-1]).read_text())
    torch.manual_seed(0)
    shape = small_llama.SHAPE
    model = PlainDecoder(Sizes(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn_hidden,
                               shape.vocabulary), shape.length)  # fmt: skip
    deepspeed.init_distributed("gloo")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    micro, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    rows, losses, at = small_llama.text(), [], 0
    seen = {"world": world, "engine": type(engine).__name__, "wrapper": type(engine.optimizer).__name__,
            "stage": engine.zero_optimization_stage()}  # fmt: skip
    small_llama.note(**seen)
    for _ in range(shape.steps):
        parts = []
        for _ in range(accumulation):
            batch = rows[at + rank * micro : at + (rank + 1) * micro]
            at += world * micro
            loss = functional.cross_entropy(engine(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            parts.append(loss.detach())
        mean = torch.stack(parts).mean()
        torch.distributed.all_reduce(mean)
        losses.append(float(mean) / world)
        small_llama.step_done()
    largest = max(model.parameters(), key=lambda one: getattr(one, "ds_numel", one.numel()))
    held = largest.ds_tensor.numel() if hasattr(largest, "ds_tensor") else largest.numel()
    groups = getattr(engine.optimizer, "single_partition_of_fp32_groups", None) or getattr(
        engine.optimizer, "fp32_partitioned_groups_flat", None)  # fmt: skip
    states = sum(one.numel() for one in groups) if groups else sum(one.numel() for one in model.parameters())
    small_llama.tell(
        **seen,
        steps=engine.global_steps,
        losses=losses,
        whole=getattr(largest, "ds_numel", largest.numel()),
        held=held,
        updated=states,
        parameters=sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters()),
    )
    engine.destroy()
    torch.distributed.destroy_process_group()
