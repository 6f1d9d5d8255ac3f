"""One rank's run on the fake device: the engine's own, from building to the last record. Loads the guard, then torch.

Reads one JSON document a line from its input, the configuration and the rank, and writes one to its output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.support.gpu.fake_cuda import build


def serve() -> None:
    """Until the input ends; what torch and the engine print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    build.load()
    import torch

    from tests.support.gpu.fake_cuda import device

    torch.set_num_threads(1)
    device.put_in()
    torch._C._set_only_lift_cpu_tensors(
        True
    )  # torch.tensor(..., device="cuda") is made here and copied there
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """``error`` is None if all went well, else its type, text and place; ``operators`` went to the device."""
    began = time.perf_counter()
    found: dict[str, Any] = {"error": None}
    try:
        found |= train(asked)
    except BaseException as error:
        found["error"] = "".join(traceback.format_exception(error))
    return found | {"seconds": time.perf_counter() - began}


def train(asked: dict[str, Any]) -> dict[str, Any]:
    """The steps of one rank of a run."""
    import torch.distributed as dist

    from engine.config.run_config import parse
    from engine.config.validation.rules import check
    from engine.rank import worker
    from tests.support.gpu.fake_cuda import around, plants
    from tests.support.gpu.fake_cuda.device import DEVICE
    from tests.support.gpu.fake_cuda.mode import Gpu

    config = parse(asked["config"])
    rank = asked["rank"]
    gpu = Gpu()
    with around.put_in(gpu), plants.planted(asked.get("plant")), tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("fake", rank=rank, world_size=check(config).world_size)
        try:
            with gpu:
                finished = worker.train_in_group(rank, config, Path(folder), DEVICE, None)
        finally:
            dist.destroy_process_group()
    for error in gpu.missed:
        raise error
    return {"finished": finished, "operators": gpu.operators}


if __name__ == "__main__":
    serve()
