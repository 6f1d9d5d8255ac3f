"""Every collective, whoever issued it.

Those of torch's own layers (DDP, FSDP2, compiled code) are seen by a kernel on the ``c10d::*`` operators at the
BackendSelect key: it notes operation, group, bytes and issue time and passes the call on; the end comes from the
work's future. The engine's own do not pass there and tell the ``active()`` recorder themselves: two marks and a tuple.
``stop()`` takes the kernels out again, so recording can be switched while a run goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.library import Library

from profilers import torch_private
from profilers.collectives.encoder import CallEncoder, Kind, Kinds, TimedCall, extend_to_noticed
from profilers.records import operations
from profilers.records.schema import CommSample
from profilers.records.writer import RecordWriter
from profilers.steps.resolve import StepSeconds
from profilers.steps.timer import IssuedCall, StepTimer
from profilers.steps.wait_sampler import waits_here

#: The recorder that is started in this process; the kernels are the process's too.
_started: list[CollectiveRecorder] = []
#: The same while it is paused: then only calls inside ``collect_background_calls`` are recorded, for the step
#: that waits for them.
_paused: list[CollectiveRecorder] = []


#: As torch has it: what stands in its place may note waits, and this one is noted already.
_wait: Any = dist.Work.wait

#: Threads whose collectives nobody records.
_unseen: set[int] = set()


@contextmanager
def pause_recording() -> Iterator[None]:
    """Collectives that this thread issues inside are no part of a step: neither recorded nor timed."""
    me = get_ident()
    _unseen.add(me)
    try:
        yield
    finally:
        _unseen.discard(me)


#: Where the calls go that a thread issues inside ``collect_background_calls``.
_beside: dict[int, list[IssuedCall]] = {}


@contextmanager
def collect_background_calls() -> Iterator[list[IssuedCall]]:
    """Calls that this thread issues inside go on beside later steps: none is told until ``tell`` is given them.

    What is recorded of a step is written when it ends, and the end of such a call would not be known by then.
    """
    me = get_ident()
    calls = _beside[me] = []
    try:
        yield calls
    finally:
        del _beside[me]


def tell(calls: list[IssuedCall]) -> None:
    """They have been waited for, in this step."""
    recorder = active_recorder()
    if recorder is not None:
        for call in calls:
            recorder.tell(call)


def active_recorder() -> CollectiveRecorder | None:
    """The recorder that collectives outside the dispatcher tell about themselves."""
    if _started:
        return _started[0]
    return _paused[0] if _paused and get_ident() in _beside else None


#: A call that its caller records: the c10d operator of torch that it is of, or stands in the place of, and arguments of
#: the call by their names in torch's schema: the payload, and all that some ``Operation.matches`` asks for. A reduction
#: is any of torch's shapes of one.
OperatorCall = tuple[str, Mapping[str, Any]]


class Call(NamedTuple):
    """A call outside steps; ``ended`` and waited for at once or not."""

    operation: str
    bytes: int
    ended: bool
    blocking: bool


class CollectiveRecorder:
    """Records the collectives of one rank.

    ``axes`` maps a process group's name to its axis (``dp``, ``tp``, ``pp``); other groups are called ``world``.
    A blocking call is waited for inside the kernel, as its caller would do next, and counts as exposed.
    """

    def __init__(self, timer: StepTimer, axes: dict[str, str]) -> None:
        self._timer, self._axes = timer, axes
        #: What a call that its caller waits for needs: ``kind = kind_of(...)``, ``begin = mark()``, the call, and
        #: ``note((begin, mark(), kind))``, with None as kind for a wait that is no call.
        self.mark, self.note = timer.clock.mark, timer.note
        self._kinds = Kinds()
        #: By operator, in the order in which they are asked: name, argument that is the payload, and ``matches``.
        self._operations = {
            operator: [
                (operation.name, operation.operators[operator], operation.matches) for operation in candidates
            ]
            for operator, candidates in operations.by_operator().items()
        }
        self._encoder = CallEncoder(self._place)
        self._futureless: set[str] = set()
        self._library: Library | None = None

    def start(self) -> None:
        """Put the kernels in. Does nothing when they are in already."""
        if self._library is not None:
            return
        self._library = Library("c10d", "IMPL")
        _started.append(self)
        for name in self._operations:
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:
                kernel = self._kernel(operator.default, name)
                self._library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        """Take the kernels out; calls seen so far stay."""
        if self._library is not None:
            torch_private.remove_kernels(self._library)
            self._library = None
            (_started if self in _started else _paused).remove(self)

    def pause(self, paused: bool) -> None:
        """Let calls pass unseen until the next ``pause(False)``; the kernels stay. Nothing while it is stopped."""
        source, target = (_started, _paused) if paused else (_paused, _started)
        if self in source:
            source.remove(self)
            target.append(self)

    def kind_of(
        self, call: OperatorCall, group: Any, sent_bytes: int | None = None, algorithm: str | None = None
    ) -> Kind:
        """What a call is recorded as: the entries of its operator say which operation it is, and what its payload."""
        operator, arguments = call
        for name, payload, matches in self._operations[operator]:
            if matches is None or matches(_named_arguments(arguments)):
                dtype, size = _payload(arguments[payload])
                return self._kinds[name, group, dtype, size, sent_bytes, algorithm]
        raise LookupError(f"no operation has this call of {operator}")

    def issue(self, call: OperatorCall, group: Any, algorithm: str | None = None) -> IssuedCall:
        """A call begins that is waited for later."""
        kind = self.kind_of(call, group, None, algorithm)
        issued = IssuedCall(self.mark(), [], kind)
        self.tell(issued)
        return issued

    def tell(self, call: IssuedCall) -> None:
        """A call that is waited for later, or was."""
        background_calls = _beside.get(get_ident()) if _beside else None
        (self._timer.issue if background_calls is None else background_calls.append)(call)

    def finish(self, call: IssuedCall) -> None:
        """A call that was issued has been waited for."""
        call.end.append(self.mark())

    def take(self) -> list[Call]:
        """The calls outside steps since the last take: those that were waited for at once, then the others."""
        waits, issued = self._timer.take()
        calls = [(kind, True, True) for _, _, kind in waits if kind is not None]
        calls += [(call.kind, bool(call.end), False) for call in issued]
        return [Call(kind.known[0], kind.known[3], *rest) for kind, *rest in calls]

    def write(self, times: StepSeconds, writer: RecordWriter) -> None:
        """Write the calls of one step; exposed is the part during which the main thread stood waiting.

        A call whose end the device has not passed, or that failed, has no seconds: nothing here waits for it.
        """
        issued = _issued_calls(times) if times.issued else []
        count = len(issued) + sum([kind is not None for _, _, kind in times.waits])
        writer.write_encoded(CommSample, lambda names: self._encoder.encode(times, issued, names), count)

    def _place(self, group: dist.ProcessGroup) -> tuple[str, int]:
        return self._axes.get(group.group_name, "world"), group.size()

    def _kernel(self, operator: Any, name: str) -> Callable[..., Any]:
        """A kernel with little in it: it runs between two waits, when nothing it touches is in a cache."""
        schema = torch_private.schema_of(operator)
        names = [argument.name for argument in schema.arguments]
        defaults = {  # which torch leaves out at the end of a call
            argument.name: argument.default_value
            for argument in schema.arguments
            if argument.has_default_value()
        }
        group_at = names.index("process_group")
        *variants, (general, general_at, _) = [
            (operation, names.index(payload), matches)
            for operation, payload, matches in self._operations[name]
        ]
        async_at = names.index("async_op") if "async_op" in names else len(names)
        returns = bool(schema.returns)  # a monitored barrier has nothing to wait for: it is over
        below = torch_private.keys_below_backend_select()
        redispatch, unbox, has_several_returns = operator.redispatch, dist.Work.unbox, len(schema.returns) > 1
        kinds, mark, note, tell = self._kinds, self.mark, self.note, self.tell

        @waits_here
        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            if (_unseen and get_ident() in _unseen) or (_paused and get_ident() not in _beside):
                return redispatch(keys & below, *arguments, **named)
            operation, tensors_at = general, general_at
            if variants:
                asked = _named_arguments(defaults | dict(zip(names, arguments, strict=False)) | named)
                for variant, variant_at, matches in variants:
                    if matches is not None and matches(asked):
                        operation, tensors_at = variant, variant_at
                        break
            dtype, size = _payload(arguments[tensors_at])
            blocking = not returns or (len(arguments) > async_at and not arguments[async_at])
            begin = mark()
            out = redispatch(keys & below, *arguments, **named)
            work = unbox(out[-1] if has_several_returns else out) if returns else None
            kind = kinds[operation, _group(arguments[group_at]), dtype, size, None, None]
            if blocking:
                if work is not None:  # NCCL has none for such a call: it is on the current stream
                    _wait(work)
                note((begin, mark(), kind))
            else:
                call = IssuedCall(begin, [], kind)
                self._follow(call, work)
                tell(call)
            return out

        return kernel

    def _follow(self, call: IssuedCall, work: Any) -> None:
        clock, operation = self._timer.clock, call.kind.known[0]
        if work is None or operation in self._futureless:
            return
        try:
            future = work.get_future()
        except RuntimeError:
            # The refusal collects a C++ stack trace, which costs more than the call: ask once for each operation.
            self._futureless.add(operation)
            return

        def note(future: Any) -> None:
            try:
                future.value()
            except RuntimeError:  # its peers are gone, or the communicator was torn down: it never ended
                return
            call.end.append(clock.mark())

        future.add_done_callback(note)


def _named_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What ``Operation.matches`` is asked with: the reduction by its name, whoever made the call."""
    named = {name: value for name, value in arguments.items() if name != "process_group"}
    if "reduce_op" in named:
        named["reduce_op"] = torch_private.reduction_name(named["reduce_op"])
    return named


def _group(group: Any) -> dist.ProcessGroup:
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def _issued_calls(times: StepSeconds) -> list[TimedCall]:
    """The calls that were issued and not waited for at once."""
    since = min(begin for begin, *_ in times.issued)
    exposed, calls = times.exposed_spans(since), []
    for begin, end, kind in times.issued:
        if end is None:
            calls.append(TimedCall(kind, begin, None, None))
        else:
            calls.append(TimedCall(kind, begin, end - begin, _overlap_seconds(begin, end, exposed)))
    extend_to_noticed(calls, times.open_waits(since))
    return calls


def _payload(tensors: Any) -> tuple[torch.dtype | None, int]:
    """dtype and bytes of a tensor, or of lists of them. Whether it is a tensor takes torch longer to say."""
    if not isinstance(tensors, (list, tuple)):
        return tensors.dtype, tensors.nbytes
    if len(tensors) == 1:
        return _payload(tensors[0])
    parts = [_payload(part) for part in tensors]
    return (parts[0][0] if parts else None), sum(size for _, size in parts)


def _overlap_seconds(begin: float, end: float, waits: list[tuple[float, float]]) -> float:
    """Overlap with disjoint, sorted spans; plain Python because a step has few waits and this runs in the rank."""
    total = 0.0
    first = max(bisect_right(waits, (begin, begin)) - 1, 0)
    for wait_begin, wait_end in waits[first:]:
        if wait_begin >= end:
            break
        total += max(0.0, min(end, wait_end) - max(begin, wait_begin))
    return total
