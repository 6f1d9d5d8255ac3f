"""Gradients in flat fp32 buckets, each averaged over ranks as soon as the step's last backward has filled it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.channel import Waitable
from engine.compression.interface import Reduction
from profilers import torch_private
from profilers.collectives import recorder
from profilers.steps.timer import IssuedCall

#: Averages a bucket in place; it starts at the first value that it is asked for.
Reduce = Callable[["Bucket"], Reduction]


@dataclass(slots=True)
class Bucket:
    """Consecutive parameters and the flat tensor that holds their gradients."""

    index: int
    parameters: list[nn.Parameter]
    flat: Tensor
    missing_count: int = 0

    def views(self) -> Iterable[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of the flat tensor, in the parameter's shape."""
        offset = 0
        for parameter in self.parameters:
            yield parameter, self.flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()


class GradientBuckets:
    """Buckets of about ``bucket_bytes`` in the order in which a backward fills them.

    fp32 parameters accumulate in their bucket directly. A gradient of another dtype is added to it in fp32 and
    dropped. ``padding`` makes every bucket's length a multiple of it. Gradients of ``late`` parameters come by
    ``add`` alone. ``wait`` waits for a message.

    With ``delayed`` a step's gradients are averaged beside the next step: ``averages`` then are those of the step
    before, in buckets of their own (``averaged``), once there was one.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        reduce: Reduce | None,
        bucket_bytes: float,
        padding: int = 1,
        late: Collection[nn.Parameter] = (),
        wait: Callable[[Waitable], object] = lambda under_way: under_way.wait(),
        delayed: bool = False,
    ) -> None:
        self._delayed, self.has_averages = delayed, not delayed
        self._calls = list[IssuedCall]()
        self._reduce, self._wait, self._late, self._padding = reduce, wait, frozenset(late), padding
        self._armed, self._next, self._under_way = False, 0, list[tuple[Waitable, Reduction]]()
        self._handles = list[Any]()
        self._fill(parameters[::-1], bucket_bytes)

    def rebuild(self, bucket_bytes: float) -> None:
        """Buckets of another size; the gradients that are summed up so far move over as they are."""
        self.drain()
        for handle in filter(None, self._handles):
            handle.remove()
        sums, averages = self.gradients, self.averages
        self._fill(list(sums), bucket_bytes)
        for parameter, gradient in self.gradients.items():
            gradient.copy_(sums[parameter])
            if self._delayed:
                self.averages[parameter].copy_(averages[parameter])

    def arm(self) -> None:
        """The next backward is the step's last one: average each bucket once it is full."""
        self._armed, self._next = not self._delayed, 0
        for bucket in self.buckets:
            bucket.missing_count = len(bucket.parameters)

    def finish(self) -> None:
        """Average what is left (a parameter may have got no gradient), and wait for all of it.

        Delayed ones are those of the step before.
        """
        for bucket in self.buckets[self._next :] if self._armed else ():
            self._send(bucket)
        self._armed = False
        self.drain()

    def drain(self) -> None:
        """Wait for all that is under way.

        Reductions of several messages go on in turn, so that one's message is under way while another one computes.
        """
        while self._under_way:
            round_, self._under_way = self._under_way, []
            for under_way, reduction in round_:
                self._wait(under_way)
                self._go_on(reduction)
        calls, self._calls = self._calls, []
        recorder.tell(calls)

    def clear(self) -> None:
        """Forget the gradients that were applied; delayed ones of this step are averaged from now on."""
        if self._delayed:  # their calls are told with the step that waits for them
            with recorder.collect_background_calls() as calls:
                for bucket, averaged in zip(self.buckets, self.averaged, strict=True):
                    averaged.flat.copy_(bucket.flat)
                    self._send(averaged)
            self._calls, self.has_averages = calls, True
        torch_private.foreach_zero_([bucket.flat for bucket in self.buckets])

    def add(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """A gradient that was computed outside autograd's backward."""
        self.gradients[parameter].add_(gradient)
        if last:
            self._ready(parameter)

    def close(self) -> None:
        """Take the hooks out, and the gradients. C++ holds a parameter's hooks and they hold its buckets, a circle that
        Python's collector does not see.
        """
        for handle in filter(None, self._handles):
            handle.remove()
        self._handles.clear()
        self._under_way.clear()
        for parameter in self.gradients:
            parameter.grad = None

    def _fill(self, parameters: list[nn.Parameter], bucket_bytes: float) -> None:
        self.buckets = _deal(parameters, bucket_bytes, self._padding)
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.gradients = {parameter: view for bucket in self.buckets for parameter, view in bucket.views()}
        self.averaged, self.averages = self.buckets, self.gradients
        if self._delayed:
            self.averaged = [replace(bucket, flat=torch.zeros_like(bucket.flat)) for bucket in self.buckets]
            self.averages = {
                parameter: view for bucket in self.averaged for parameter, view in bucket.views()
            }
        self._handles = [self._watch(parameter) for parameter in self.gradients]

    def _watch(self, parameter: nn.Parameter) -> Any:
        if parameter in self._late:
            return None
        if parameter.dtype == torch.float32:
            parameter.grad = self.gradients[parameter]
            return parameter.register_post_accumulate_grad_hook(self._ready)
        return parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.gradients[parameter].add_(parameter.grad)  # type: ignore[index]
        parameter.grad = None
        self._ready(parameter)

    def _ready(self, parameter: Tensor) -> None:
        if not self._armed:
            return
        self._bucket_of[parameter].missing_count -= 1  # type: ignore[index]
        while self._next < len(self.buckets) and not self.buckets[self._next].missing_count:
            self._send(self.buckets[self._next])
            self._next += 1

    def _send(self, bucket: Bucket) -> None:
        if self._reduce is not None:
            self._go_on(self._reduce(bucket))

    def _go_on(self, reduction: Reduction) -> None:
        under_way = next(reduction, None)
        if under_way is not None:
            self._under_way.append((under_way, reduction))


def _deal(parameters: list[nn.Parameter], bucket_bytes: float, padding: int) -> list[Bucket]:
    dealt: list[list[nn.Parameter]] = [[]]
    for parameter in parameters:
        if dealt[-1] and 4 * sum(map(torch.numel, [*dealt[-1], parameter])) > bucket_bytes:
            dealt.append([])
        dealt[-1].append(parameter)
    return [Bucket(index, members, _flat(members, padding)) for index, members in enumerate(dealt) if members]


def _flat(parameters: list[nn.Parameter], padding: int) -> Tensor:
    length = -(-sum(map(torch.numel, parameters)) // padding) * padding
    return torch.zeros(length, dtype=torch.float32, device=parameters[0].device)
