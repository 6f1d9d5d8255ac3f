"""Check of two ranks on one GPU over NCCL: what shows with a single GPU whether layouts of several ranks run at all.

NCCL refuses two ranks on one GPU unless each says that it is on a host of its own (NCCL_HOSTID); they then talk
through sockets. For correctness, never for speed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from engine.config.errors import WorkbenchError
from engine.config.run_config import RunConfig, load
from engine.config.validation.rules import check
from engine.lifecycle import summary_of
from engine.run import run_folder
from profilers.records.reader import RunRecords
from workbench.selftest.check_context import LABEL, CheckContext
from workbench.selftest.checks import layouts
from workbench.selftest.checks.layouts import EXPERTS, SIZES, TOLERANCE_NATS, largest_difference
from workbench.selftest.results import Number, Verdict, not_possible, verdict_of

BACKEND, DEVICE = "nccl", "cuda"
_RANKS = 2
_PATIENCE_SECONDS = 90.0
_LOOK_SECONDS = 0.1
#: Loopback is there on every machine; a second host's fabric is not.
SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
#: What NCCL says where it knows the GPU in spite of the host's name.
_REFUSED = "Duplicate GPU"

#: Of each step; or what went wrong.
Losses = list[float | None] | str


def two_on_one_gpu(bench: CheckContext, backend: str = BACKEND, device: str = DEVICE) -> Verdict:
    """Every axis on two ranks of one GPU, pipelines last, against one rank on it."""
    kinds = (layouts.data, layouts.tensor, layouts.context, layouts.expert, layouts.pipeline)
    problems: list[str] = []
    measured: dict[str, Number] = {}
    losses_of_one: dict[bool, Losses] = {}
    for kind in kinds:
        for name, values in kind(_RANKS).items():
            experts = name == "ep"
            if experts not in losses_of_one:
                whole = EXPERTS | {"batch.micro_batch": 8} if experts else {}
                label = f"one-rank-{len(losses_of_one)}"
                losses_of_one[experts] = losses_of(
                    _config(bench, whole, device), bench.home, label, backend, device
                )
            losses = losses_of(_config(bench, values, device), bench.home, name, backend, device)
            if isinstance(losses, str) and _REFUSED in losses:
                return not_possible(f"NCCL refuses two ranks on this GPU: {losses}", measured)
            problem, difference = _compare(name, losses, losses_of_one[experts], TOLERANCE_NATS[device])
            measured[f"{name}_loss_difference_nats"] = difference
            problems += problem
    return verdict_of(
        problems, f"{len(measured)} layouts on two ranks of one GPU equal one rank on it", measured
    )


def _config(bench: CheckContext, values: dict[str, Any], device: str) -> RunConfig:
    return bench.config(SIZES | values | {"device": device})


def _compare(
    name: str, losses: Losses, losses_of_one: Losses, tolerance: float
) -> tuple[list[str], float | None]:
    if isinstance(losses, str):
        return [f"{name}: {losses}"], None
    if isinstance(losses_of_one, str):
        return [f"{name}: one rank has no losses to compare with: {losses_of_one}"], None
    difference = largest_difference(losses, losses_of_one)
    problems = [] if difference <= tolerance else [f"{name}: losses differ by {difference:.1e}"]
    return problems, difference


def losses_of(
    config: RunConfig, home: Path, label: str = "", backend: str = BACKEND, device: str = DEVICE
) -> Losses:
    """Losses of a run on as many ranks as its layout has, all on one device."""
    import torch.distributed as dist

    try:
        world_size = check(config).world_size
    except WorkbenchError as error:
        return f"illegal: {error}"
    methods, folder = multiprocessing.get_context("spawn"), run_folder.create(home, config, {LABEL: label})
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (world_size, store.port, folder, backend, device)
    ranks = [
        methods.Process(target=run_rank, args=(rank, *arguments), daemon=True) for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    problem = first_failure(ranks, folder)
    for process in ranks:
        process.kill()
        process.join()
    return problem or summary_of(config, folder.name, backend, RunRecords(folder / run_folder.RECORDS)).losses


def first_failure(ranks: list[Any], folder: Path) -> str | None:
    """Wait for all ranks; what went wrong with the first that failed, None if none did."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for rank, process in enumerate(ranks):
            if process.exitcode:
                return f"rank {rank} ended with {process.exitcode}: {last_words(folder, rank)}"
        if all(process.exitcode == 0 for process in ranks):
            return None
        time.sleep(_LOOK_SECONDS)
    return f"no end within {_PATIENCE_SECONDS:.0f} s; rank 0: {last_words(folder, 0)}"


def last_words(folder: Path, rank: int) -> str:
    """The last line of a rank's log."""
    log = folder / run_folder.LOGS / f"rank-{rank}.log"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    refusals = [line for line in lines if _REFUSED in line]
    return (refusals or lines or ["it wrote nothing"])[-1]


def run_rank(rank: int, world_size: int, port: int, folder: Path, backend: str, device: str) -> None:
    """One rank, as if on a host of its own: collectives first, then a short run."""
    with (folder / run_folder.LOGS / f"rank-{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for key, value in (SOCKETS | {"NCCL_HOSTID": f"rank-{rank}"}).items():
        os.environ.setdefault(key, value)
    import torch.distributed as dist

    from engine.rank.worker import device_of, train_in_group
    from engine.run.devices.selection import load_backend

    store = dist.PrefixStore(folder.name, dist.TCPStore("127.0.0.1", port, is_master=False))
    patience = timedelta(seconds=_PATIENCE_SECONDS)
    chosen = device_of(device, 0)
    name = load_backend(backend)
    dist.init_process_group(name, store=store, rank=rank, world_size=world_size, timeout=patience)
    check_collectives(rank, world_size, chosen)
    train_in_group(rank, load(folder / run_folder.CONFIG), folder, chosen, None)
    dist.destroy_process_group()


def check_collectives(rank: int, world_size: int, device: Any) -> None:
    """Every collective that the engine issues, against what it has to give."""
    import torch
    import torch.distributed as dist

    from engine.comm.channel import Channel

    assert dist.group.WORLD is not None
    channel, ranks = Channel(dist.group.WORLD, device), range(world_size)
    own = torch.full((2,), rank + 1.0, device=device)
    gathered = torch.cat([torch.full((2,), r + 1.0, device=device) for r in ranks])
    same(channel.all_gather(own), gathered)
    same(channel.reduce_scatter(gathered), world_size * own)
    total, largest = own.clone(), own.clone()
    channel.all_reduce(total)
    channel.all_reduce(largest, "max")
    same(total, torch.full_like(own, sum(r + 1.0 for r in ranks)))
    same(largest, torch.full_like(own, float(world_size)))
    same(channel.all_to_all(own.repeat(world_size)), gathered)
    if rank < world_size - 1:
        channel.send(own, rank + 1).wait()
    if rank > 0:
        same(channel.receive(torch.empty_like(own), rank - 1).wait(), own - 1.0)


def same(actual: Any, expected: Any) -> None:
    """The same numbers, bit by bit."""
    import torch

    assert torch.equal(actual, expected), f"{actual.tolist()} instead of {expected.tolist()}"
