"""A process group as the engine's own code uses it: calls go to the group's backend and record themselves.

``torch.distributed``'s functions pass through c10d's operators, where a Python kernel records each call; here it is two
clock marks and a tuple. Compiled code has torch's functional collectives instead: where a function of autograd wrote
its result into a tensor made for it, the compiler of torch 2.11 found no gradient, and gave zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from engine.comm import gloo_exchange, host_values
from engine.comm.gloo_exchange import Exchange, can_reduce
from profilers import torch_private
from profilers.collectives.recorder import OperatorCall, active_recorder, pause_recording
from profilers.collectives.wire_bytes import EXCHANGE
from profilers.steps.timer import IssuedCall
from profilers.steps.wait_sampler import waits_here
from profilers.torch_private import functional_collectives as functional

Group = dist.ProcessGroup


def _either(new: str, old: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(dist, new, None) or getattr(dist, old)
    return function


# 2.13 renamed both and warns about the old names; 2.11 knows only those.
all_gather_single = _either("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _either("reduce_scatter_single", "reduce_scatter_tensor")

_REDUCTIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def gather_call(out: Tensor, x: Tensor) -> OperatorCall:
    """An all-gather of ``x``."""
    return "_allgather_base_", {"output_tensor": out, "input_tensor": x}


def scatter_call(out: Tensor, x: Tensor, reduction: Any = dist.ReduceOp.SUM) -> OperatorCall:
    """A reduce-scatter of ``x``."""
    return "_reduce_scatter_base_", {"output_tensor": out, "input_tensor": x, "reduce_op": reduction}


def reduce_call(x: Tensor, reduction: Any = dist.ReduceOp.SUM) -> OperatorCall:
    """An all-reduce in place."""
    return "allreduce_", {"tensors": [x], "reduce_op": reduction}


def exchange_call(out: Tensor, x: Tensor, receive: Sequence[int], send: Sequence[int]) -> OperatorCall:
    """An all-to-all; no sizes stand for equal parts."""
    sizes = {"output_split_sizes": receive, "input_split_sizes": send}
    return "alltoall_base_", {"output": out, "input": x, **sizes}


def send_call(x: Tensor, target: int) -> OperatorCall:
    """One end of a message."""
    return "send", {"tensors": [x], "dst": target}


def receive_call(into: Tensor, source: int) -> OperatorCall:
    """The other end."""
    return "recv_", {"tensors": [into], "src": source}


class Waitable(Protocol):
    """A call under way."""

    def wait(self) -> Any:
        """Return when it is through. RuntimeError if it failed."""


class Message:
    """A point-to-point message under way."""

    __slots__ = ("_call", "_recorder", "_work", "tensor")

    def __init__(self, tensor: Tensor, work: Any, call: IssuedCall | None) -> None:
        self.tensor, self._work, self._call = tensor, work, call
        self._recorder = active_recorder()

    @property
    def is_through(self) -> bool:
        """Whether waiting would take no time."""
        return bool(self._work.is_completed())

    @waits_here
    def wait(self) -> Tensor:
        """The tensor, once it has arrived or left."""
        self._work.wait()
        if self._call is not None and self._recorder is not None:
            self._recorder.finish(self._call)
        return self.tensor


class AsyncCall:
    """A call beside computation; the time for which it is waited for counts as exposed communication."""

    __slots__ = ("_work",)

    def __init__(self, work: Any) -> None:
        self._work = work

    @waits_here
    def wait(self) -> None:
        """Return when it is through. RuntimeError if it failed."""
        recorder = active_recorder()
        if recorder is None:
            self._work.wait()
            return
        begin = recorder.mark()
        self._work.wait()
        recorder.note((begin, recorder.mark(), None))


def _blocking(kind: Callable[[], Any]) -> Any:
    """Options of a call that is waited for where it is made."""
    options = kind()
    options.asyncOp = False
    return options


class Channel:
    """This rank's end of one group, for tensors on one device; every rank of the group makes the same calls."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.size, self.rank, self.device = group, group.size(), group.rank(), device
        self._backend: Any = torch_private.backend_of(group, device)
        self._gather = torch_private.gather_start(self._backend)
        self._scatter = torch_private.scatter_start(self._backend)
        #: Whether calls between two ranks wait for each other unless they are posted together.
        self.batches = self._backend.name() == "nccl"
        self._exchange = Exchange(self._backend, self.size) if self._backend.name() == "gloo" else None
        self._all_gather = _blocking(c10d.AllgatherOptions)
        self._reduce_scatter = _blocking(c10d.ReduceScatterOptions)
        self._all_to_all = _blocking(c10d.AllToAllOptions)
        self._all_reduce = {name: _blocking(c10d.AllreduceOptions) for name in _REDUCTIONS}
        for name, options in self._all_reduce.items():
            options.reduceOp = _REDUCTIONS[name]

    def all_gather(self, x: Tensor) -> Tensor:
        """[n, ...] of every rank -> [size * n, ...], in the order of ranks."""
        if torch.compiler.is_compiling():
            gathered: Tensor = functional.all_gather_tensor(x.contiguous(), 0, self.group)
            return gathered
        out = x.new_empty((x.shape[0] * self.size, *x.shape[1:]))
        self.all_gather_into(out, x.contiguous())
        return out

    def all_gather_into(self, out: Tensor, x: Tensor) -> None:
        """``all_gather`` into a contiguous ``out``; outside compiled code."""
        if self._exchange is not None and self._exchange.gathers(x):
            self._wait(gather_call(out, x), self._exchange.all_gather, out, x, algorithm=EXCHANGE)
        else:
            self._wait(gather_call(out, x), self._gather, out, x, self._all_gather)

    def start_all_gather_into(self, out: Tensor, x: Tensor) -> Waitable:
        """``all_gather_into`` beside computation."""
        return AsyncCall(all_gather_single(out, x, group=self.group, async_op=True))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """[size * n, ...] -> [n, ...]: this rank's part of the sum over ranks."""
        if torch.compiler.is_compiling():
            part: Tensor = functional.reduce_scatter_tensor(x.contiguous(), "sum", 0, self.group)
            return part
        out = x.new_empty((x.shape[0] // self.size, *x.shape[1:]))
        self.reduce_scatter_into(out, x.contiguous())
        return out

    def reduce_scatter_into(self, out: Tensor, x: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        """``reduce_scatter`` into a contiguous ``out``; outside compiled code."""
        exchange = self._exchange
        if exchange is not None and can_reduce(operation):
            reduce = exchange.reduce_scatter
            self._wait(scatter_call(out, x, operation), reduce, out, x, operation, algorithm=EXCHANGE)
            return
        self._reduce_scatter.reduceOp = operation
        self._wait(scatter_call(out, x, operation), self._scatter, out, x, self._reduce_scatter)

    def start_reduce_scatter_into(
        self, out: Tensor, x: Tensor, operation: Any = dist.ReduceOp.SUM
    ) -> Waitable:
        """``reduce_scatter_into`` beside computation; ``out`` may be this rank's part of ``x``."""
        exchange = self._exchange
        if exchange is None or not can_reduce(operation):
            work: Waitable = reduce_scatter_single(out, x, op=operation, group=self.group, async_op=True)
            return work
        recorder = active_recorder()
        if recorder is None:
            return exchange.start_reduce_scatter(out, x, operation, lambda: None)
        call = recorder.issue(scatter_call(out, x, operation), self.group, EXCHANGE)
        return exchange.start_reduce_scatter(out, x, operation, lambda: recorder.finish(call))

    def all_reduce(self, x: Tensor, operation: Literal["sum", "max"] = "sum") -> None:
        """In place, on a contiguous tensor."""
        if torch.compiler.is_compiling():
            dist.all_reduce(x, op=_REDUCTIONS[operation], group=self.group)
            return
        reduction = _REDUCTIONS[operation]
        if self._exchange is not None and self._exchange.reduces(x):
            reduce = self._exchange.all_reduce
            self._wait(reduce_call(x, reduction), reduce, x, reduction, algorithm=EXCHANGE)
        else:
            all_reduce = self._backend.allreduce
            self._wait(reduce_call(x, reduction), all_reduce, [x], self._all_reduce[operation])

    def all_to_all(
        self, x: Tensor, send: list[int] | None = None, receive: list[int] | None = None
    ) -> Tensor:
        """Rows of ``x`` [n, ...] to the ranks in order, ``send[r]`` of them to rank r, and theirs in return.

        Returns [sum(receive), ...]; without sizes every rank gets n / size rows.
        """
        send, receive = send or [], receive or []
        if torch.compiler.is_compiling():
            back: Tensor = functional.all_to_all_single(
                x.contiguous(), receive or None, send or None, self.group
            )
            return back
        out = x.new_empty((sum(receive) if receive else x.shape[0], *x.shape[1:]))
        others = (sum(send) - send[self.rank]) if send else None
        sent = None if others is None else others * math.prod(x.shape[1:]) * x.itemsize
        call, x = exchange_call(out, x, receive, send), x.contiguous()
        self._wait(call, self._start_all_to_all, out, x, receive, send, sent_bytes=sent)
        return out

    def _start_all_to_all(
        self, out: Tensor, x: Tensor, receive: list[int], send: list[int]
    ) -> Waitable | None:
        """All ranks have to choose alike, and know no others' sizes than equal ones."""
        if self._exchange is not None and (send or x.nbytes >= self.size * gloo_exchange.LARGE):
            return gloo_exchange.start(self._backend, out, x, receive, send)
        work: Waitable | None = self._backend.alltoall_base(out, x, receive, send, self._all_to_all)
        return work

    def send(self, x: Tensor, target: int) -> Message:
        """Start sending to a member of the group."""
        return self._start(send_call(x, target), x, self._backend.send, target)

    def receive(self, into: Tensor, source: int) -> Message:
        """Start receiving from a member of the group."""
        return self._start(receive_call(into, source), into, self._backend.recv, source)

    @waits_here
    def _wait(
        self,
        call: OperatorCall,
        function: Callable[..., Any],
        *arguments: Any,
        sent_bytes: int | None = None,
        algorithm: str | None = None,
    ) -> None:
        recorder = active_recorder()
        if recorder is None:
            if (work := function(*arguments)) is not None:  # NCCL returns none: it is on the current stream
                work.wait()
            return
        kind = recorder.kind_of(call, self.group, sent_bytes, algorithm)
        mark, note = recorder.mark, recorder.note
        begin = mark()
        if (work := function(*arguments)) is not None:
            work.wait()
        note((begin, mark(), kind))  # as little as can be: after a wait nothing is in a cache

    def _start(self, call: OperatorCall, payload: Tensor, function: Callable[..., Any], peer: int) -> Message:
        recorder = active_recorder()
        issued = recorder.issue(call, self.group) if recorder is not None else None
        return Message(payload, function([payload], peer, 0), issued)


def all_reduce_scalar(value: float, channel: Channel | None) -> float:
    """Sum of a number over a group."""
    if channel is None:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=channel.device)
    channel.all_reduce(total)
    return host_values.number(total)


class Hop(NamedTuple):
    """A message to one rank and one from another under way at once, as a ring sends them."""

    sent: Message
    received: Message

    def wait(self) -> Tensor:
        """What arrived, once the other message has left, too."""
        recorder = active_recorder()
        if recorder is None:
            self.sent.wait()
            return self.received.wait()
        begin = recorder.mark()
        self.sent.wait()
        arrived = self.received.wait()
        recorder.note((begin, recorder.mark(), None))
        return arrived


def start_hop(channel: Channel, x: Tensor, target: int, into: Tensor, source: int) -> Hop:
    """Start sending ``x`` to a member of the group, and receiving a contiguous ``into`` from one.

    NCCL runs the calls between two ranks one after the other and each waits for its peer; both of a group of two are
    such calls. There they are posted as one batch, which it runs as one. On gloo neither waits, and the receive comes
    first: it sends its peer a note that it is ready, which would wait behind a long message on the same connection, so
    that of two opposing messages the second would begin where the first ends.
    """
    if channel.batches:
        return start_batched(channel, x, target, into, source)
    received = channel.receive(into, source)
    return Hop(channel.send(x, target), received)


def start_batched(channel: Channel, x: Tensor, target: int, into: Tensor, source: int) -> Hop:
    """``start_hop`` with both messages posted as one batch, on any backend."""
    recorder, group = active_recorder(), channel.group
    calls = [
        None if recorder is None else recorder.issue(call, group)
        for call in (send_call(x, target), receive_call(into, source))
    ]
    messages = [
        dist.P2POp(dist.isend, x, group=group, group_peer=target),
        dist.P2POp(dist.irecv, into, group=group, group_peer=source),
    ]
    with pause_recording():  # torch's operators would be recorded a second time
        works = dist.batch_isend_irecv(messages)
    return Hop(Message(x, works[0], calls[0]), Message(into, works[-1], calls[1]))
