"""Gloo ranks on one core each, in the lab if a configuration asks for it, and steps of several kinds on them in turn.

Two ways of doing one thing are compared inside the same processes, step by step and in random order: what the
machine does meanwhile then meets both alike.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks._ratio import Taken
from engine.comm.channel import all_gather_single, reduce_scatter_single
from engine.comm.context import RankContext, build_groups
from engine.comm.transport import transport_of
from engine.config.layout import layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import RankHosts
from engine.launch.workers import PRELOAD
from engine.model.axes import Axes, LocalExperts
from engine.model.decoder import Decoder, initialize
from engine.parallel.build import build_stages
from engine.parallel.context.axis import WholeSequence
from engine.parallel.data.optimizer import LocalOptimizer
from engine.parallel.tensor import TensorParallel
from engine.rank import loop
from engine.rank.step_log import StepLog
from engine.rank.worker import group_timeout, join
from engine.run import run_folder
from engine.run.commands import StopControl
from engine.run.processes import yield_to_running_threads
from engine.run.progress import Progress
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.clock import CpuClock
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.sampling_budget import DetailChoice
from profilers.steps.timer import StepTimer

#: Rounds that are thrown away: allocators, caches and lazily built state settle in them.
WARM_UP = 3


class Steps(Protocol):
    """One kind of step."""

    def prepare(self) -> None:
        """What the next step needs and nobody measures."""

    def step(self) -> None:
        """One step."""

    def finish(self) -> None:
        """What comes after it and nobody measures."""


class Engine:
    """The engine on this rank, one step after the other, as training takes them."""

    def __init__(self, rank: RankContext) -> None:
        self.rank, self.taken = rank, 0
        self.choice = Held(rank.config.profile.budget)
        self.log = StepLog(rank, choice=self.choice)
        self.stages = build_stages(rank)
        self._samples = self.stages.samples()
        self._optimizer = LocalOptimizer(list(self.stages.stages.values()), rank.groups, rank.config.train)
        self.log.__enter__()  # until the process ends

    def one_step(self, log: Any) -> None:
        """The next step; ``log`` is told of it."""
        loop.one_step(self.rank, self.stages, self._optimizer, self._samples, log, self.taken)
        self.taken += 1


class Held(DetailChoice):
    """Records as much of a step as it is told to; what training would choose is kept as ``every``."""

    detailed = True

    def wants(self, step: int) -> bool:
        """As told."""
        return self.detailed


class EngineSteps:
    """Steps of an engine, recorded as in training, in detail or not; or not at all."""

    def __init__(self, engine: Engine, recorded: bool, detailed: bool = True) -> None:
        self._engine, self._recorded, self._detailed = engine, recorded, detailed
        self._log: Any = engine.log if recorded else Silent()

    def prepare(self) -> None:
        """Put the recorder's kernels in or take them out."""
        switch_recording(self._engine.rank, self._recorded)
        self._engine.choice.detailed = self._detailed

    def step(self) -> None:
        """The engine's next step."""
        self._engine.one_step(self._log)

    def finish(self) -> None:
        """Nothing."""


class TorchProfiled(EngineSteps):
    """Steps under torch.profiler and without our records; its start and stop are not measured."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, recorded=False)

    def prepare(self) -> None:
        """Start the profiler."""
        super().prepare()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._profiler.start()

    def finish(self) -> None:
        """Stop it."""
        self._profiler.stop()


class Silent:
    """Stands in for the step log in a step that is not recorded; remembers its result."""

    loss: float | None = None
    norm = 0.0

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def finish_step(self, times: Any, loss: float | None, norm: float, *_: object) -> None:
        """Remember them."""
        self.loss, self.norm = loss, norm


class SilentTimer(StepTimer):
    """A timer that can be told to mark nothing; while it does mark, nothing is added to its own way.

    Where the rank stands is told in any case: the launcher goes by it, whatever is recorded.
    """

    def hush(self, quiet: bool) -> None:
        """Whether to mark nothing from now on."""
        for name, silent in (("begin", self._note_step), ("_change", self._only_tell), ("end", _nothing)):
            if quiet:
                vars(self)[name] = silent
            else:
                vars(self).pop(name, None)

    def _note_step(self, step: int) -> None:
        self.step = step

    def _only_tell(self, code: int) -> None:
        self._tell(self.step, code, time.monotonic())


def _nothing(*_: object) -> None:
    """Stands for a method of the timer."""


def switch_recording(rank: RankContext, on: bool) -> None:
    """Switch this rank's timer and recorder, and call what the dispatcher sees once.

    After a switch the first call of an operator is slower; in training recording stays as it is.
    """
    assert isinstance(rank.timer, SilentTimer)
    rank.timer.hush(not on)
    for recorder in (rank.recorder, rank.actions):
        if recorder is not None:
            (recorder.start if on else recorder.stop)()
    few, many = torch.zeros(1), torch.zeros(dist.get_world_size())
    for blocking in (True, False):
        for call, tensors in (
            (dist.all_reduce, (few,)),
            (all_gather_single, (many, few)),
            (reduce_scatter_single, (few, many)),
        ):
            work = call(*tensors, async_op=not blocking)
            if not blocking:
                work.wait()
    rank.timer.take()


def in_turn(kinds: Mapping[str, Steps], rounds: int) -> list[Taken]:
    """Each kind once a round, in an order that is random and the same on all ranks."""
    names, shuffle, taken = list(kinds), random.Random(0), []
    for _ in range(WARM_UP + rounds):
        for name in shuffle.sample(names, len(names)):
            kinds[name].prepare()
            dist.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
            kinds[name].step()
            taken.append(Taken(name, time.process_time() - cpu, time.perf_counter() - wall))
            kinds[name].finish()
    return taken[WARM_UP * len(names) :]


def on_cores(
    config: RunConfig,
    measure: Callable[..., Any],
    *arguments: Any,
    watch: Callable[[list[int]], None] = lambda pids: None,
) -> list[Any]:
    """What ``measure(rank_context, *arguments)`` returns on each rank, which is on the device that
    ``parallel.placement`` gives it; ``watch`` is told their processes.
    """
    methods, world_size = multiprocessing.get_context("forkserver"), layout_of(config).world_size
    methods.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as home, contextlib.closing(RankHosts(config.lab)) as place:
        folder = run_folder.create(Path(home), config, {})
        Progress(folder, world_size).close()
        pipes = [methods.Pipe(duplex=False) for _ in range(world_size)]
        store, devices = (place.store_address, place.store.port), place.namespaces(world_size)
        hosts = [devices[device] for device in config.parallel.placement or range(world_size)]
        ranks = [
            methods.Process(
                target=_rank,
                args=(rank, hosts[rank], store, folder, pipe[1], measure, arguments),
                daemon=True,
            )
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, writer) in zip(ranks, pipes, strict=True):
            process.start()
            writer.close()  # else a rank that dies would not end the wait for its answer
        watch([process.pid or 0 for process in ranks])
        answers = [reader.recv() for reader, _ in pipes]
        for process in ranks:
            process.join()
    return answers


def whole_weights(config: RunConfig) -> dict[str, Tensor]:
    """The tensors that training starts from, by name and unsplit, whatever the layout."""
    shape = resolve(config.model)
    axes = Axes(TensorParallel(), WholeSequence(), LocalExperts())
    decoder = Decoder(shape, range(shape.layers), axes, sequence_length=config.data.sequence_length)
    initialize(decoder, config.train.seed)
    return {name: value.detach() for name, value in decoder.state_dict().items()}


def context(rank: int, config: RunConfig, folder: Path) -> RankContext:
    """A rank with all its instruments, as a worker makes it."""
    layout, progress, device = layout_of(config), Progress(folder), torch.device("cpu")
    made = build_groups(layout, rank, device, group_timeout(config), transport_of(config))
    timer = SilentTimer(CpuClock(), progress.status(rank))
    return RankContext(
        rank=rank,
        config=config,
        layout=layout,
        device=device,
        groups=made,
        timer=timer,
        recorder=CollectiveRecorder(timer, made.axes),
        writer=RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}"),
        control=StopControl(progress, rank),
        progress=progress,
        actions=ActionRecorder(timer) if config.parallel.pp * config.schedule.chunks > 1 else None,
    )


def _rank(
    rank: int,
    namespace: str | None,
    address: tuple[str, int],
    folder: Path,
    answers: Connection,
    measure: Callable[..., Any],
    arguments: Any,
) -> None:
    if namespace is not None:
        join(namespace)
    torch.set_num_threads(1)
    yield_to_running_threads()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    config = parse(run_folder.read_json(folder / run_folder.CONFIG))
    store, size = dist.TCPStore(*address, is_master=False), layout_of(config).world_size
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=group_timeout(config))
    answers.send(measure(context(rank, config, folder), *arguments))
    dist.destroy_process_group()
