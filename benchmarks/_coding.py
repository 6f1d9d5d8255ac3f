"""Steps of several methods of compression on one rank, and what each of them costs: seconds, bytes, coding."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks._methods import METHODS
from benchmarks._ranks import Engine, Silent, switch_recording
from engine.comm.channel import Group
from engine.comm.context import RankContext
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content, Message, Reduction
from engine.config.compression import settings_of
from engine.config.formulas.network import DATA
from engine.parallel.data.averaging import AveragedParameters
from engine.run import netns
from profilers.analysis.wire_counters import ETHERNET_HEADER_BYTES
from profilers.collectives.wire_bytes import wire_bytes
from profilers.system import procfs

#: Steps of this kind send nothing.
COMPUTE = "compute"
#: A step after each change of method, which makes buffers and takes over what the last one left out.
WARM_UP = 1


class Step(NamedTuple):
    """One step of one rank. ``overlapped``: seconds of its backward in which a message was under way and nothing was
    coded; never more than the link needs for the buckets that were sent by then.
    """

    seconds: float
    sent_bytes: float
    overlapped: float


class Kind(NamedTuple):
    """What a rank measured of one kind, in order; ``coding`` are seconds, on a link without a rate."""

    steps: list[Step]
    coding: list[float]
    messages: list[Message]


class Watched:
    """A compressor whose reductions are timed; with ``silent`` nothing is sent and gradients stay as they are."""

    def __init__(self, inner: GradientCompressor, rate_mbit: float | None) -> None:
        self.inner, self.silent = inner, False
        self._bytes_per_second = None if rate_mbit is None else rate_mbit * 1e6 / 8
        self.gradients: dict[int, Tensor] = {}
        self.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self) -> None:
        """A step begins."""
        self._first, self._coding, self._wire, self._ended = None, 0.0, 0.0, False
        self._first: float | None

    def reduce(self, content: Content) -> Reduction:
        """As the compressor does it."""
        if self.silent:
            self.gradients[content.index] = content.flat.clone()
            return
        begin, inner = time.perf_counter(), self.inner.reduce(content)
        if not self._ended:
            self._wire += sent(self.inner.messages(content))
        for under_way in inner:
            self._coded(begin)
            self._first = self._first or time.perf_counter()
            yield under_way
            begin = time.perf_counter()
        self._coded(begin)

    def backward_ended(self) -> None:
        """The rest of the step waits for what is under way."""
        self._ended, now = True, time.perf_counter()
        self.overlapped = 0.0 if self._first is None else max(0.0, now - self._first - self._coding)
        if self._bytes_per_second is not None:
            self.overlapped = min(self.overlapped, self._wire / self._bytes_per_second)

    def _coded(self, begin: float) -> None:
        if not self._ended and self._first is not None:
            self._coding += time.perf_counter() - max(begin, self._first)


class Rank:
    """The engine on one rank, with one bucketful of parameters after the other and a second group without a rate."""

    def __init__(self, rank: RankContext) -> None:
        self._engine, self._log, self._rank = Engine(rank), Silent(), rank
        switch_recording(rank, False)
        (replica,) = self._engine.stages.stages.values()
        (self._part,) = replica.parts  # type: ignore[attr-defined]
        assert isinstance(self._part, AveragedParameters) and self._part.compressor is not None
        self._watched = Watched(self._part.compressor, rank.config.lab.rate_mbit)
        self._part.compressor = self._watched  # type: ignore[assignment]
        self._watch_backward()
        self._coder = GradientCompressor(
            settings_of(rank.config.compression), unshaped(), 0, lambda: 1, rank.device
        )

    def kind(self, name: str, steps: int) -> Kind:
        """Change to a kind and take its steps; the first ones are thrown away."""
        self._watched.silent = name == COMPUTE
        if name != COMPUTE:
            values = {f"compression.{key}": value for key, value in METHODS[name].items()}
            config = self._rank.config.with_values(values)
            self._part.reconfigure(config)
            self._coder.use(settings_of(config.compression))
        taken = [self._step() for _ in range(WARM_UP + steps)][WARM_UP:]
        if name == COMPUTE:
            return Kind(taken, [0.0] * steps, [])
        coding = [self._coding_seconds() for _ in range(WARM_UP + steps)][WARM_UP:]
        told = [one for content in self._part.contents for one in self._watched.inner.messages(content)]
        return Kind(taken, coding, told)

    def _step(self) -> Step:
        self._watched.start()
        dist.barrier()
        bytes_before, begin = payload_sent(), time.perf_counter()
        self._engine.one_step(self._log)
        seconds = time.perf_counter() - begin
        dist.barrier()  # whoever ended a step has received all that was sent to it
        return Step(seconds, payload_sent() - bytes_before, self._watched.overlapped)

    def _coding_seconds(self) -> float:
        """Of all buckets, with all ranks at it from the same moment on; waiting is no part of it."""
        contents = [self._filled(content) for content in self._part.contents]
        dist.barrier()
        total = 0.0
        for content in contents:
            begin = time.perf_counter()
            for under_way in self._coder.reduce(content):
                total += time.perf_counter() - begin
                under_way.wait()
                begin = time.perf_counter()
            total += time.perf_counter() - begin
        return total

    def _filled(self, content: Content) -> Content:
        """With this rank's gradient of its last step that sent nothing."""
        return Content(content.index, self._watched.gradients[content.index].clone(), content.parts)

    def _watch_backward(self) -> None:
        finish, watched = self._part.buckets.finish, self._watched

        def ended() -> None:
            watched.backward_ended()
            finish()

        self._part.buckets.finish = ended  # type: ignore[method-assign]


def measure(rank: RankContext, names: list[str], rounds: int, steps: int) -> dict[str, Kind]:
    """Each kind once a round, in an order that is random and the same on all ranks; steps that send nothing first."""
    here, shuffle, found = Rank(rank), random.Random(0), dict[str, Kind]()
    for _ in range(rounds):
        for name in [COMPUTE, *shuffle.sample(names, len(names))]:
            one, known = here.kind(name, steps), found.get(name)
            found[name] = one if known is None else Kind(
                known.steps + one.steps, known.coding + one.coding, one.messages
            )  # fmt: skip
    return found


def sent(messages: list[Message], ranks: int | None = None) -> float:
    """Bytes that a rank puts on the wire for messages, by formula."""
    size = dist.get_world_size() if ranks is None else ranks
    return sum(_wire(messages, size))


def _wire(messages: list[Message], ranks: int) -> Iterator[float]:
    for one in messages:
        found = wire_bytes(one.operation, "gloo", None, ranks, np.array([one.bytes]))
        assert found is not None, one.operation
        yield float(found[0])


def payload_sent() -> float:
    """TCP payload that this host's data interface has sent so far."""
    traffic = procfs.interfaces(Path("/proc/thread-self/net/dev").read_bytes())[DATA]
    return traffic.sent_bytes - ETHERNET_HEADER_BYTES * traffic.sent_packets


def unshaped() -> Group:
    """All ranks, over the lab's second network, which has no rate."""
    name = "GLOO_SOCKET_IFNAME"
    before = os.environ[name]
    os.environ[name] = netns.CONTROL
    try:
        group: Group = dist.new_group(backend="gloo")
        dist.all_reduce(torch.zeros(1), group=group)
    finally:
        os.environ[name] = before
    return group
