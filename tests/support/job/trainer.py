"""``torchrun --nproc-per-node 2 .../trainer.py ddp|fsdp OUT [STEPS] [MISCHIEF]``: plain DDP or FSDP2 on gloo.

Each rank leaves ``OUT/rank-N.json``: stop-watches around and inside what it does in a step, and what torch.profiler saw
of its collectives. Nothing here is imported from this project.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

#: Steps that torch.profiler watches.
PROFILED = (4, 5)
READING_SECONDS = 0.004


class Slow(torch.utils.data.Dataset):
    """Reading it takes a while."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(READING_SECONDS)
        return torch.full((256,), float(place % 7))


class Net(nn.Module):
    """Notes when its own forward begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.inside: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside = [time.perf_counter()]
        for layer in self.layers:
            x = torch.relu(layer(x))
        self.inside.append(time.perf_counter())
        return x


def wrapped(kind: str, net: Net) -> nn.Module:
    """DDP with small buckets, or FSDP2 on a mesh."""
    if kind == "ddp":
        return DistributedDataParallel(net, bucket_cap_mb=0.3)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def stand_still() -> None:
    """Until it is said of rank 1 that it does, in this step."""
    status, until = Path(os.environ["WORKBENCH_RECORD"]) / "status.json", time.monotonic() + 90
    while time.monotonic() < until:
        hang = json.loads(status.read_text()).get("hang") or {}
        if hang.get("rank") == 1 and "in step 6" in hang["reason"]:
            return
        time.sleep(0.1)


def mischief(what: str, step: int) -> None:
    """What goes wrong in step 6 of rank 1."""
    if step != 6 or dist.get_rank() != 1:
        return
    if what == "raise":
        raise ValueError("no such luck")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        stand_still()


def main() -> None:
    kind, out, steps, what = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), [*sys.argv, ""][4]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = wrapped(kind, net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=0)
    notes, profiler = [], torch.profiler.profile(record_shapes=True)
    for step, batch in enumerate(loader):
        mischief(what, step)
        note = {"forward": [time.perf_counter()]}
        loss = model(batch).square().mean()
        note["forward"] += [*net.inside, time.perf_counter()]
        optimizer.zero_grad()
        note["backward"] = [time.perf_counter()]
        loss.backward()
        note["backward"].append(time.perf_counter())
        note["optimizer"] = [time.perf_counter()]
        optimizer.step()
        note["optimizer"].append(time.perf_counter())
        notes.append(note)
        if step == PROFILED[0] - 1 and what == "":
            profiler.start()
        if step == PROFILED[1] and what == "":
            profiler.stop()
        if step == steps - 1:
            break
    if what == "":
        events = [
            [one.name, one.input_shapes]
            for one in profiler.events()
            if "c10d" in one.name or "gloo" in one.name
        ]
        document = {"notes": notes, "events": events}
        (out / f"rank-{dist.get_rank()}.json").write_text(json.dumps(document))
    if dist.get_rank() == 0:
        print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
