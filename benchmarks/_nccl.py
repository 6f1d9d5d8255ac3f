"""Short runs on NCCL with all ranks on one GPU, compared with one rank: for correctness, never for speed.

NCCL refuses two ranks on one GPU unless each says that it is on a host of its own (NCCL_HOSTID); they then talk
through sockets.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import _table as table
from engine import rundir
from engine.channel import Channel
from engine.config import RunConfig, load, parse
from engine.errors import WorkbenchError
from engine.lifecycle import summary_of
from engine.rules import check
from engine.worker import device_of, train_in_group
from profilers.tail import RunRecords

BACKEND, DEVICE = "nccl", "cuda"
SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    "train": {"steps": 3, "warmup": 1, "validation_batches": 0},
    "device": DEVICE,
}
#: The balancing loss is taken over a micro-batch of all ranks, which is another one on one rank.
EXPERTS = {"model.experts": 4, "model.balance_weight": 0.0}
#: Layout, its degrees, and what its model has beyond the tiny preset.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("1 rank, ZeRO-3", {"parallel.zero_stage": 3}, {}),
    ("2 ranks, dp=2", {"parallel.dp": 2}, {}),
    ("2 ranks, dp=2, ZeRO-3", {"parallel.dp": 2, "parallel.zero_stage": 3}, {}),
    ("2 ranks, tp=2", {"parallel.tp": 2}, {}),
    ("2 ranks, pp=2", {"parallel.pp": 2}, {}),
    ("2 ranks, cp=2", {"parallel.cp": 2}, {}),
    ("2 ranks, dp=2, ep=2", {"parallel.dp": 2, "parallel.ep": 2}, EXPERTS),
]
#: Kernels may add in another order than those of one rank.
LOSS_TOLERANCE = 1e-4
PATIENCE_SECONDS = 90.0
#: Loopback is there on every machine; a second host's fabric is not.
SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}

#: Of each step; or what went wrong.
Losses = list[float | None] | str


def compare(gpu: str, save: bool) -> bool:
    """Print the table of all layouts; tell whether the runs on one rank ended well."""
    references: dict[str, Losses] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as home:
        for name, degrees, extra in CASES:
            key = "1 rank, 4 experts" if extra else "1 rank"
            if key not in references:
                references[key] = losses_of(parse(SMALL).with_values(extra), Path(home))
                rows.append(told([key, spelled(references[key]), "", ""]))
            losses = losses_of(parse(SMALL).with_values(degrees | extra), Path(home))
            rows.append(told([name, spelled(losses), *difference(losses, references[key])]))
    title = (
        f"NCCL on one {gpu}: losses of a tiny decoder in fp32, for correctness only (two ranks share the GPU)"
    )
    header = ["layout", "losses", "largest difference", f"within {LOSS_TOLERANCE:g}"]
    table.show("gpu_nccl", title, header, rows, save)
    return all(isinstance(losses, list) for losses in references.values())


def losses_of(config: RunConfig, home: Path) -> Losses:
    """Losses of a run on as many ranks as its layout has, all on one GPU."""
    try:
        world_size = check(config).world_size
    except WorkbenchError as error:
        return f"illegal: {error}"
    methods, folder = multiprocessing.get_context("spawn"), rundir.create(home, config, {})
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        methods.Process(target=run_rank, args=(rank, world_size, store.port, folder), daemon=True)
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    problem = trouble(ranks, folder)
    for process in ranks:
        process.kill()
        process.join()
    return problem or summary_of(config, folder.name, BACKEND, RunRecords(folder / rundir.RECORDS)).losses


def trouble(ranks: list[Any], folder: Path) -> str | None:
    """Wait for all ranks; what went wrong with the first that failed, None if none did."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        for rank, process in enumerate(ranks):
            if process.exitcode:
                return f"rank {rank} ended with {process.exitcode}: {last_words(folder, rank)}"
        if all(process.exitcode == 0 for process in ranks):
            return None
        time.sleep(0.1)
    return f"no end within {PATIENCE_SECONDS:.0f} s; rank 0: {last_words(folder, 0)}"


def last_words(folder: Path, rank: int) -> str:
    """The last line of a rank's log; more of it goes to the terminal."""
    log = folder / rundir.LOGS / f"rank-{rank}.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    print(*lines[-15:], sep="\n", flush=True)
    return lines[-1].replace("|", "/") if lines else "it wrote nothing"


def run_rank(rank: int, world_size: int, port: int, folder: Path) -> None:
    """One rank, as if on a host of its own: collectives first, then a short run."""
    with (folder / rundir.LOGS / f"rank-{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for key, value in (SOCKETS | {"NCCL_HOSTID": f"rank-{rank}"}).items():
        os.environ.setdefault(key, value)
    device = device_of(DEVICE, 0)
    store = dist.PrefixStore(folder.name, dist.TCPStore("127.0.0.1", port, is_master=False))
    patience = timedelta(seconds=PATIENCE_SECONDS)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size, timeout=patience)
    check_collectives(rank, world_size, device)
    train_in_group(rank, load(folder / rundir.CONFIG), folder, device, None)
    dist.destroy_process_group()


def check_collectives(rank: int, world_size: int, device: torch.device) -> None:
    """Every collective that the engine issues, against what it has to give."""
    assert dist.group.WORLD is not None
    channel, ranks = Channel(dist.group.WORLD, device), range(world_size)
    mine = torch.full((2,), rank + 1.0, device=device)
    everyone = torch.cat([torch.full((2,), r + 1.0, device=device) for r in ranks])
    same(channel.all_gather(mine), everyone)
    same(channel.reduce_scatter(everyone), world_size * mine)
    total, largest = mine.clone(), mine.clone()
    channel.all_reduce(total)
    channel.all_reduce(largest, "max")
    same(total, torch.full_like(mine, sum(r + 1.0 for r in ranks)))
    same(largest, torch.full_like(mine, float(world_size)))
    same(channel.all_to_all(mine.repeat(world_size)), everyone)
    if rank < world_size - 1:
        channel.send(mine, rank + 1).wait()
    if rank > 0:
        same(channel.receive(torch.empty_like(mine), rank - 1).wait(), mine - 1.0)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same numbers, bit by bit."""
    assert torch.equal(found, expected), f"{found.tolist()} instead of {expected.tolist()}"


def difference(losses: Losses, alone: Losses) -> list[str]:
    """Largest difference to the losses of one rank, and whether it is small enough."""
    if isinstance(losses, str) or isinstance(alone, str) or not losses or len(losses) != len(alone):
        return ["", "not compared"]
    pairs = zip(losses, alone, strict=True)
    largest = max(float("inf") if a is None or b is None else abs(a - b) for a, b in pairs)
    return [f"{largest:.1e}", "yes" if largest <= LOSS_TOLERANCE else "no"]


def spelled(losses: Losses) -> str:
    """Losses in a cell, or what went wrong."""
    return (
        losses if isinstance(losses, str) else ", ".join(f"{loss:.6f}" for loss in losses if loss is not None)
    )


def told(row: list[str]) -> list[str]:
    """Print a row at once: what was found stays, whatever comes later."""
    print(" | ".join(row), flush=True)
    return row
