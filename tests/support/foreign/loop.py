"""``python -m torch.distributed.run --nproc-per-node 2 .../loop.py STEPS``: two gloo ranks whose steps sleep as their
values say. Each rank notes its values of every step in ``rank-N.jsonl`` beside the protocol's files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from engine.rank.foreign import Tuned, folder_given

#: A step of these values takes so long; the planted better one is the second.
SECONDS = {1: 0.03, 2: 0.01, 4: 0.02}


class Loop:
    """Values as they hold on this rank."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def apply(self, values: dict[str, Any]) -> None:
        """Refuses one value on the last rank alone, and dies of another."""
        self.values = dict(values)
        if values["accumulation"] == 3 and dist.get_rank() == 1:
            raise ValueError("accumulation=3: must divide 8")
        if values["accumulation"] == 99 and dist.get_rank() == 1:
            os._exit(7)


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    loop, folder = Loop(), folder_given("tuned")
    noted = (folder / f"rank-{dist.get_rank()}.jsonl").open("w")
    with Tuned(folder, {"accumulation": 1, "bucket_mb": 25.0}) as tuned:
        loop.apply(tuned.values)
        for step in range(int(sys.argv[1])):
            tuned.begin_step(step, loop.apply)
            time.sleep(SECONDS.get(loop.values["accumulation"], 0.02))
            dist.all_reduce(torch.ones(1))
            noted.write(json.dumps([step, loop.values]) + "\n")
            noted.flush()
            tuned.end_step(tokens=64, loss=1.0 / (1 + step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
