"""A plain DDP loop, three of whose values a study turns while it goes; nothing here is this project's but ``Tuned``.

torchrun --standalone --nproc-per-node 2 examples/foreign/train.py [STEPS]
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from engine.rank.foreign import Tuned, folder_given

BATCH, WIDTH = 32, 256
HOOKS = {"none": None, "fp16": fp16_compress_hook}


class Trainer:
    """A model that ranks train together."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(6) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.text = torch.Generator().manual_seed(rank)
        self.ddp: Any = None
        self.parts = 1

    def apply(self, values: dict[str, Any]) -> None:
        """All that changes with the tuned values; ValueError where one is refused."""
        if values["hook"] not in HOOKS:
            raise ValueError(f"hook={values['hook']}: give one of {', '.join(HOOKS)}")
        if BATCH % values["accumulation"]:
            raise ValueError(f"accumulation={values['accumulation']}: must divide the batch of {BATCH}")
        self.parts, self.ddp = values["accumulation"], None
        gc.collect()  # the old wrapper's hooks go with it
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=values["bucket_mb"])
        if hook := HOOKS[values["hook"]]:
            self.ddp.register_comm_hook(None, hook)

    def step(self) -> float:
        """One batch in ``parts``, of which only the last one is reduced; its mean loss on this rank."""
        batch, loss = torch.randn(BATCH, WIDTH, generator=self.text), 0.0
        for number, part in enumerate(batch.chunk(self.parts)):
            self.ddp.require_backward_grad_sync = number == self.parts - 1
            found = (self.ddp(part) - part.roll(1, -1)).square().mean() / self.parts
            found.backward()
            loss += found.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    """Train as many steps as the first argument says."""
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    usual = {"bucket_mb": 25.0, "hook": "none", "accumulation": 8}
    with Tuned(folder_given("tuned"), usual) as tuned:
        trainer.apply(tuned.values)
        for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 600):
            tuned.begin_step(step, trainer.apply)
            loss = trainer.step()
            tuned.end_step(tokens=BATCH * dist.get_world_size(), loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
