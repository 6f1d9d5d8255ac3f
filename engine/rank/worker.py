"""One rank's life: join the group, train, report; and the loop in which a warm worker serves many runs."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from engine.comm.context import RankContext, build_groups
from engine.comm.transport import group_options, transport_of
from engine.config import environment
from engine.config.errors import LayoutError
from engine.config.formulas.network import DATA
from engine.config.layout import devices_of, layout_of
from engine.config.run_config import RunConfig, load
from engine.rank import environment_report, flight, loop
from engine.rank.loop import DivergedError
from engine.run import netns
from engine.run.commands import StopControl
from engine.run.devices.selection import load_backend
from engine.run.messages import LabPlacement, RankReport, RankTask
from engine.run.outcome import Ending, ending_of_error, limits_of
from engine.run.processes import (
    data_limit,
    die_with,
    ran_out_of_memory,
    yield_to_running_threads,
)
from engine.run.progress import PATIENCE_OUTSIDE_STEPS, Progress
from engine.run.run_folder import CONFIG, LOGS, RECORDS
from profilers.analysis.events import NETWORKS_EVENT
from profilers.collectives import flight_recorder
from profilers.collectives.recorder import CollectiveRecorder
from profilers.rank import identity
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.rank_status import unread_status
from profilers.steps.timer import StepTimer
from profilers.steps.wait_sampler import WaitSampler
from profilers.system.memory import give_back_freed

_LAST_LINES = 12
#: Errors of ours that say themselves how a run ends. Ranks alone can look at some rules of a layout: a budget, by what
#: they measured.
_OWN_ERRORS = {DivergedError: Ending.DIVERGED, LayoutError: Ending.ILLEGAL}
_UNLIMITED = "memory.limit_gib caps ranks on CPUs only; this rank, on a GPU, has no such limit"


def serve(tasks: Connection, lifeline: Connection, namespace: str | None, variables: dict[str, str]) -> None:
    """Body of a warm worker, in a host of the lab if one is named: run tasks until the pipe closes; die at once with
    the controller. Variables are set before anything here reads them.
    """
    environment.take(variables)
    if namespace is not None:
        join(namespace)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(lifeline.fileno())
    while True:
        try:
            task = tasks.recv()
        except (EOFError, OSError):
            return
        report = run_task(task)
        tasks.send(report)
        if report.good:
            free_memory()  # afterwards: the report is waited for
        else:
            _leave()


def join(namespace: str) -> None:
    """Make this process part of a lab's host; before it has a second thread or a socket."""
    netns.enter(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = DATA


def run_task(task: RankTask) -> RankReport:
    """Run one rank of one run in this process; whatever happens becomes a report. After a bad ending the default group
    is still there.
    """
    with contextlib.suppress(OSError):  # on a full disk a run goes without its log
        _redirect(task.folder / LOGS / f"rank-{task.rank}.log")
    config = load(task.folder / CONFIG)
    limit_memory(config.memory.limit_gib if task.device_kind == "cpu" else None)
    progress = Progress(task.folder)
    progress.enter_state(task.rank, -1, "starting")
    try:
        finished = _train(task, config, progress)
    except BaseException as error:
        limit = data_limit()
        limit_memory(None)  # what follows needs some
        traceback.print_exc()
        return failure(task.rank, error, progress, limit)
    finally:
        limit_memory(None)
        sys.stdout.flush()
        sys.stderr.flush()
    return RankReport(task.rank, Ending.COMPLETED if finished else Ending.STOPPED)


def _train(task: RankTask, config: RunConfig, progress: Progress) -> bool:
    torch.set_num_threads(task.threads)
    if task.device_kind == "cpu":
        yield_to_running_threads()
    flight_recorder.arm()
    store = dist.TCPStore(task.store_address, task.store_port, is_master=False)
    enter_group(config, load_backend(task.backend), dist.PrefixStore(task.folder.name, store), task.rank)
    device = device_of(task.device_kind, devices_of(config)[task.rank])
    finished = train_in_group(task.rank, config, task.folder, device, progress, task.lab_placement)
    dist.destroy_process_group()
    return finished


def enter_group(config: RunConfig, backend: str, store: dist.Store, rank: int) -> None:
    """Make the default group, over the network that reaches all ranks."""
    with group_options(transport_of(config).between, backend) as options:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=layout_of(config).world_size,
            timeout=group_timeout(config),
            pg_options=options,
        )


def _leave() -> None:
    """Peers then see lost connections and report at once; with NCCL this may wait for ever, for calls that they will
    never make: so it comes after the report, whose reader ends this process.
    """
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def train_in_group(
    rank: int,
    config: RunConfig,
    folder: Path,
    device: torch.device,
    progress: Progress | None,
    lab_placement: LabPlacement | None = None,
) -> bool:
    """Train as one rank of an initialised default group; False if the run was stopped early."""
    layout = layout_of(config)
    torch.manual_seed(config.train.seed)
    groups = build_groups(layout, rank, device, group_timeout(config), transport_of(config))
    status = unread_status() if progress is None else progress.status(rank)
    timer = StepTimer(clock_for(device.type), status)
    writer = RecordWriter(folder / RECORDS, f"rank-{rank}")
    _introduce(rank, config, device, lab_placement, writer)
    if carried := groups.transport.record_fields():
        writer.event(NETWORKS_EVENT, groups=carried)
    context = RankContext(
        rank=rank,
        config=config,
        layout=layout,
        device=device,
        groups=groups,
        timer=timer,
        recorder=CollectiveRecorder(timer, groups.axes),
        writer=writer,
        control=StopControl(progress, rank),
        progress=progress,
        folder=folder,
        group_timeout=group_timeout(config),
        lab_placement=lab_placement,
        actions=ActionRecorder(timer) if config.parallel.pp * config.schedule.chunks > 1 else None,
    )
    try:
        with flight.answer_dump_requests(progress, rank, folder, groups), WaitSampler(timer, status):
            finished = loop.train(context)
        environment_report.note(
            context.config.environment, device, folder / LOGS / f"rank-{rank}.log", writer
        )
        return finished
    finally:
        environment_report.restore_environment()
        environment_report.note_choices(folder / LOGS / f"rank-{rank}.log", writer)
        writer.close()


def _introduce(
    rank: int,
    config: RunConfig,
    device: torch.device,
    lab_placement: LabPlacement | None,
    writer: RecordWriter,
) -> None:
    """Record where and with what this rank computes: the machine's name (in the lab with the number of the host), which
    of the run's devices it has, and the variables that change what it does.
    """
    host = socket.gethostname() + ("" if lab_placement is None else f", lab host {lab_placement.host}")
    number = devices_of(config)[rank]
    writer.event(
        "environment", **identity.variables(), **_arithmetic(device), host=host, device_number=number
    )
    environment_report.note_asked(config.environment, writer)
    if config.memory.limit_gib is not None and device.type != "cpu":
        writer.event("note", text=_UNLIMITED)


def group_timeout(config: RunConfig) -> timedelta:
    """Longer than the launcher's own patience, outside of steps as well: it sees which rank hangs, a collective only
    that one does.
    """
    parts = [limit.seconds for limit in limits_of(config.value_of) if limit.deadline.state is not None]
    patience = max([PATIENCE_OUTSIDE_STEPS * config.train.step_timeout_seconds, *parts])
    return timedelta(seconds=patience + 30)


def device_of(kind: str, number: int) -> torch.device:
    """The device of that number on this host, made current."""
    if kind != "cuda":
        return torch.device("cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def ending_of_exception(error: BaseException, limit: int | None = None) -> Ending:
    """Which ending an exception in a rank stands for; ``limit`` as for :func:`ran_out_of_memory`."""
    text = f"{type(error).__name__}: {error}"
    for kind, ending in _OWN_ERRORS.items():
        if isinstance(error, kind):
            return ending
    return ending_of_error(
        text,
        runtime=isinstance(error, RuntimeError),
        out_of_memory=isinstance(error, MemoryError | torch.OutOfMemoryError)
        or ran_out_of_memory(text, limit),
        distributed=isinstance(error, dist.DistError),
    )


def failure(rank: int, error: BaseException, progress: Progress, limit: int | None = None) -> RankReport:
    """What a rank reports of an exception, with where it stood; ``limit`` on its memory was set then."""
    lines = traceback.format_exception(error)
    last = tuple("".join(lines).strip().splitlines()[-_LAST_LINES:])
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    place_of_rank = next((place for place in progress.ranks() if place.rank == rank), None)
    phase = None if place_of_rank is None else place_of_rank.phase
    phase = error.phase if isinstance(error, DivergedError) else phase
    if not isinstance(error, tuple(_OWN_ERRORS)):
        reason = f"{type(error).__name__}: {reason}"
    return RankReport(rank, ending_of_exception(error, limit), reason, phase, last)


def _arithmetic(device: torch.device) -> dict[str, str | int | None]:
    """What computes here, and how, with the version of NCCL."""
    return identity.arithmetic(device) | environment_report.facts()


def _redirect(path: Path) -> None:
    """Send this process's output to the run's log of this rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def limit_memory(gib: float | None) -> None:
    """What this process may have for its data; None for as much as its user lets it have."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if gib is None else int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


#: Each but the last finds what the one before let go of; two have been enough.
_MOST_COLLECTIONS = 5


def free_memory() -> None:
    """Free what the last run made, so that the next one finds memory as the first one did; in this order, since each
    can give back only what the one before let go of.

    Circles of Python objects, the device's cached blocks, pinned memory, and the C library's freed blocks. What is
    cached counts as reserved in the next run, and what is freed but resident counts in its peak. Blocks until a GPU
    has done all that it was given: not for a worker that still has to tell of a failure.
    """
    for _ in range(_MOST_COLLECTIONS):
        # A tensor in a circle that C++ holds too, as FSDP2's are, outlives the collection that finds it.
        if not gc.collect():
            break
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        # https://docs.pytorch.org/docs/stable/generated/torch.accelerator.memory.empty_host_cache.html
        empty_pinned = getattr(torch.accelerator, "empty_host_cache", None)
        if empty_pinned is not None:
            empty_pinned()
        torch.cuda.reset_peak_memory_stats()
    give_back_freed()
