"""Stands for what lies around a rank: other ranks, kernels that a CPU build leaves out, what a router chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from engine.checkpoint import checkpointer, dcp
from engine.checkpoint.state import State
from engine.comm import channel
from engine.model.experts import dispatch
from engine.parallel import expert
from engine.parallel.context import attention
from tests.support.gpu.fake_cuda.mode import Gpu
from tests.support.gpu.fake_cuda.values import Readings

#: Where it belongs, its name there, and what takes its place.
StandIn = tuple[Any, str, Any]


@contextmanager
def put_in(gpu: Gpu) -> Iterator[None]:
    """Into the engine and torch, while inside."""
    with ExitStack() as stack:
        for owner, name, made in (*_ranks(), *_kernels(), *_routing(gpu.readings), *_disk(gpu)):
            stack.enter_context(mock.patch.object(owner, name, made))
        yield


def _ranks() -> Iterator[StandIn]:
    """Every rank says what this one says; and NCCL's rule holds, that calls between two ranks wait for each other."""

    def alike(found: list[Any], mine: Any, *_: Any, **__: Any) -> None:
        found[:] = [mine] * len(found)

    begin = channel.Channel.__init__

    def as_nccl(self: channel.Channel, *arguments: Any) -> None:
        begin(self, *arguments)
        self.batches = True

    yield dist, "all_gather_object", alike
    yield channel.Channel, "__init__", as_nccl


def _disk(gpu: Gpu) -> Iterator[StandIn]:
    """This rank writes its part of a checkpoint by itself; an error there does not go under in an event."""

    def save(state: State, *arguments: Any, **named: Any) -> Any:
        try:
            return dcp_save(state, *arguments, **named | {"process_group": None, "no_dist": True})
        except BaseException as error:
            gpu.missed.append(error)
            raise

    dcp_save = dcp.dcp.save
    yield dcp.dcp, "save", save
    yield checkpointer, "_group", lambda rank: dist.group.WORLD


def _kernels() -> Iterator[StandIn]:
    """torch answers for the build, not for the tensors: flash attention takes 16 bits, the efficient one all."""
    half = (torch.bfloat16, torch.float16)
    yield attention, "can_use_flash_attention", lambda asked, *_: asked.query.dtype in half
    yield attention, "can_use_efficient_attention", lambda *_: True


def _routing(readings: Readings) -> Iterator[StandIn]:
    """How many rows go to which expert only a router knows: all of them are dealt, unevenly."""
    sort, loop = expert.ExpertParallel.run_sorted, dispatch.looped_linear

    def run_sorted(self: expert.ExpertParallel, rows: Tensor, *others: Any) -> Tensor:
        with readings.dealing(rows.shape[0]):
            return sort(self, rows, *others)

    def looped_linear(x: Tensor, *others: Any) -> Tensor:
        with readings.dealing(x.shape[0]):
            return loop(x, *others)

    def tolist(self: Tensor) -> Any:
        return self.cpu().tolist()  # all of them at once, as CUDA does; a fake tensor would read one by one

    yield FakeTensor, "tolist", tolist
    yield expert.ExpertParallel, "run_sorted", run_sorted
    yield dispatch, "looped_linear", looped_linear
