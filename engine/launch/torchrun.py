"""A run under torchrun: ``torchrun --nproc-per-node N -m engine.launch.torchrun config.json [--out FOLDER]``.

Every rank runs the same loop as in a study; with ``parallel.placement`` ranks are numbered as that says. Beside the
ranks of each host a process samples it (``beside``); beside rank 0 it takes orders, too. Rank 0 sums the run up and
prints its losses.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from engine.checkpoint import resume
from engine.config import environment, layout
from engine.config.errors import InputError, WorkbenchError, several
from engine.config.run_config import RunConfig, load
from engine.config.validation import rules
from engine.footprint.budget import check_budget
from engine.launch import ending
from engine.launch.ending import ProcessExit, outcome_of_ranks
from engine.launch.sidecar import run_sidecar
from engine.launch.torchrun_ending import EndingReporter, leave
from engine.lifecycle import finish, note_start
from engine.model.workloads.task_texts import check_texts
from engine.rank.worker import (
    device_of,
    ending_of_exception,
    enter_group,
    failure,
    group_timeout,
    limit_memory,
    train_in_group,
)
from engine.run import run_folder
from engine.run.devices import gpu_probe, interfaces, selection
from engine.run.devices.selection import Devices, load_backend
from engine.run.messages import RankReport
from engine.run.outcome import Ending, RunOutcome
from engine.run.processes import is_running, yield_to_running_threads
from engine.run.progress import Progress
from engine.run.progress import read as standings
from profilers.collectives import flight_recorder
from profilers.torch_private import own_store


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of every rank; 2 for wrong input, 1 for a bad ending, else 0: a stop on request is none."""
    parser = argparse.ArgumentParser(
        prog="engine.launch.torchrun", description="Train one exported configuration."
    )
    parser.add_argument("config", type=Path, help="config.json as exported")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the run folder goes")
    options = parser.parse_args(arguments)
    try:
        config = _load_config(options.config)
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _with_variables(config, sys.argv[1:] if arguments is None else arguments)
    # Started by plain python, one process is a world of its own.
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    store, rank, _ = next(iter(rendezvous("env://", timeout=group_timeout(config))))
    try:
        chosen = choose_devices(config, store, rank, len(layout.devices_of(config)))
        interfaces.require(config, chosen)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _run(config, options.out, store, chosen)


def _with_variables(config: RunConfig, arguments: Sequence[str]) -> None:
    """Set what the configuration asks for; begin again where some of it is read as a program starts."""
    early = environment.variables(config.environment, at_start=True)
    missing = {name: value for name, value in early.items() if os.environ.get(name) != value}
    environment.take(environment.variables(config.environment))
    if missing:
        os.execv(sys.executable, [sys.executable, "-m", "engine.launch.torchrun", *arguments])


class _Choice(msgspec.Struct):
    """The devices that one rank would use by itself, or in ``remedy`` why it refuses."""

    host: str
    devices: Devices | None = None
    remedy: str = ""


def choose_devices(config: RunConfig, store: dist.Store, place: int, places: int) -> Devices:
    """GPUs where each rank has one that works, the CPU on all ranks otherwise; every rank calls it.

    ``place`` is torchrun's number of this process.

    Raises:
        InputError: GPUs were asked for by name, and some rank has none; raised on all.
    """
    choice = decisive = _own_choice(config)
    if config.device != "cpu":
        shared = dist.PrefixStore("devices", store)
        shared.set(f"{place}", msgspec.json.encode(choice).decode())
        choices = [msgspec.json.decode(shared.get(f"{number}"), type=_Choice) for number in range(places)]
        shared.set(f"heard-{place}", "")
        without_gpu = (
            choice for choice in choices if choice.devices is None or choice.devices.kind != "cuda"
        )
        decisive = next(without_gpu, choice)
        if decisive.devices is None and place == 0:
            # This process may hold the store, which is to outlive the others' questions.
            shared.wait([f"heard-{number}" for number in range(places)])
    host_prefix = "" if decisive.host == choice.host else f"{decisive.host}: "
    if decisive.devices is None:
        raise InputError("device", "cuda", f"{host_prefix}{decisive.remedy}")
    return replace(decisive.devices, reason=f"{host_prefix}{decisive.devices.reason}")


def _own_choice(config: RunConfig) -> _Choice:
    """A rank is about to use CUDA in any case: it asks torch here, of the GPU of its own, and starts no process."""
    own_gpu = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    try:
        devices = selection.choose(config, ranks, ask=functools.partial(gpu_probe.look, only=own_gpu))
        return _Choice(socket.gethostname(), devices)
    except InputError as error:
        return _Choice(socket.gethostname(), remedy=error.remedy)


def _load_config(path: Path) -> RunConfig:
    config = load(path)
    if config.lab.is_wanted:  # torchrun brings its own hosts, whose interfaces have other names
        config = config.with_values({"lab": {}, "network": {}})
    layout = rules.check(config)
    check_budget(config)
    check_texts(config)
    resume.find(config)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != layout.world_size:
        remedy = (
            f"this configuration is for {several(layout.world_size, 'ranks')}; start torchrun with that many"
        )
        raise InputError("WORLD_SIZE", ranks, remedy)
    return config


def _run(config: RunConfig, home: Path, store: dist.Store, chosen: Devices) -> int:
    device = device_of(chosen.kind, int(os.environ.get("LOCAL_RANK", "0")))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the configuration's, if it has one
    if chosen.kind == "cpu":
        yield_to_running_threads()
    rank = _join(config, load_backend(chosen.backend), store)
    folder = _shared_folder(config, home, rank, chosen)
    ranks = dist.get_world_size()
    end = functools.partial(_end, folder, config, chosen.backend)
    dead = functools.partial(_dead, folder, ending.count())
    words = EndingReporter(own_store("last words"), rank, ranks, end, dead)
    with words.listening():
        try:
            report = _train_beside(words, rank, config, folder, device)
        except Exception as error:  # a peer may be gone before the first step, and after the last one
            traceback.print_exc()
            reason = (str(error).strip().splitlines() or [""])[0]
            report = RankReport(rank, ending_of_exception(error), f"{type(error).__name__}: {reason}")
            words.tell(report)
    if not report.good:
        return 1
    dist.destroy_process_group()
    if rank == 0:
        end(outcome_of_ranks([report], []))
    return 0


def _train_beside(
    words: EndingReporter, rank: int, config: RunConfig, folder: Path, device: torch.device
) -> RankReport:
    """Train while this host is sampled. The report of this rank, once all ranks are through or its failure is told."""
    with run_sidecar(folder, config, rank) as progress:
        report = _train(rank, config, folder, device, progress)
        if rank and not report.good:
            words.tell(report)
    if report.good:
        dist.barrier()
    elif rank == 0:
        words.tell(report)
    return report


def _dead(folder: Path, kills_before: int, ranks: Sequence[int]) -> list[ProcessExit]:
    """Those of these ranks whose process on this host is gone; how, only torchrun is told."""
    dead = []
    for standing in standings(folder):
        if standing.rank in ranks and not is_running(standing.pid):
            by_process = ending.ending_of_process((), ending.was_killed(standing.pid, kills_before))
            dead.append(ProcessExit(standing.rank, None, standing.phase, (), by_process))
    return dead


def _end(folder: Path, config: RunConfig, backend: str, outcome: RunOutcome) -> None:
    """Sum the run up, and tell whoever started it."""
    hang = run_folder.RunStatus.from_folder(folder).hang
    if hang and outcome.ending.facts.consequence:  # it is only how that hang ended
        outcome = hang.outcome()
    summary = finish(folder, config, backend, outcome)
    document = {"run": folder.name, "outcome": outcome.ending.value, "losses": summary.losses}
    print(json.dumps(document), flush=True)


def _join(config: RunConfig, backend: str, store: dist.Store) -> int:
    """Enter the default group; the rank of this process.

    torchrun counts its processes through as devices lie. With ``parallel.placement`` they only meet by those numbers
    (the first one keeps the store, wherever rank 0 goes), and are then numbered as the configuration says.
    """
    flight_recorder.arm()
    placed = layout.devices_of(config)
    rank = placed.index(int(os.environ["RANK"]))
    enter_group(config, backend, dist.PrefixStore("placed", store), rank)
    return rank


def _shared_folder(config: RunConfig, home: Path, rank: int, chosen: Devices) -> Path:
    """Rank 0 makes the run folder and tells its name; other nodes make their own part of it."""
    name: list[str | None] = [None]
    if rank == 0:
        folder = run_folder.create(home, config, {"purpose": "torchrun"})
        world, local_size = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        note_start(folder, config, chosen, "several hosts" if local_size < world else None)
        name[0] = folder.name
    dist.broadcast_object_list(name, src=0)
    folder = home / str(name[0])
    (folder / run_folder.RECORDS).mkdir(parents=True, exist_ok=True)
    return folder


def _train(
    rank: int, config: RunConfig, folder: Path, device: torch.device, progress: Progress
) -> RankReport:
    try:
        finished = train_in_group(rank, config, folder, device, progress)
    except Exception as error:
        limit_memory(None)  # what follows needs some
        traceback.print_exc()
        return failure(rank, error, progress)
    return RankReport(rank, Ending.COMPLETED if finished else Ending.STOPPED)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    if code:
        leave(code)  # a group whose ranks do not all come could wait for them for ever
