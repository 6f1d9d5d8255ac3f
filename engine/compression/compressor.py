"""A bucket from its gradient to its average: error memory, what is compressed, and what is sent as it is.

The code of a method is found by the name that configurations use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from engine.comm.channel import Group
from engine.compression.interface import (
    Content,
    LayerErrors,
    Link,
    Message,
    Method,
    MethodInput,
    MethodState,
    Partition,
    Reduction,
    partition_of,
)
from engine.compression.randomness import RandomStreams
from engine.config.compression import Settings
from engine.config.methods.compression_methods import COMPRESSION_METHODS, Value
from profilers import torch_private


@dataclass(frozen=True, slots=True)
class _BucketMethod:
    partition: Partition
    method: Method | None


class GradientCompressor:
    """Averages gradient buckets over a group; every rank reduces the same buckets in the same order.

    ``step`` tells the running step. With ``one_way`` a rank needs the average of its own slice of each bucket alone;
    not every method can do that.

    Error feedback as in arXiv 1901.09847: what a rank did not send is added to its next gradient. The memory lies like
    the bucket, whatever the method: it outlives a change of settings, and what a method without error feedback finds in
    it goes out with the next gradient.
    """

    def __init__(
        self,
        settings: Settings,
        group: Group,
        seed: int,
        step: Callable[[], int],
        device: torch.device,
        one_way: bool = False,
    ) -> None:
        self._link, self._settings, self._step, self._one_way = Link(group, device), settings, step, one_way
        self._streams = RandomStreams(seed, self._link.rank, step, device)
        self._carried: dict[tuple[str, str], Tensor] = {}
        self._memories: dict[int, Tensor] = {}
        self._prepared: dict[int, _BucketMethod] = {}

    @property
    def one_way(self) -> bool:
        """Whether a rank gets the average of its own slice alone."""
        return self._one_way

    @property
    def settings(self) -> Settings:
        """Those in use."""
        return self._settings

    def use(self, settings: Settings) -> None:
        """Go on with other settings, between steps. What was left out so far is kept, or sent with the next step:
        methods are made anew, and what they kept of errors goes to the memory.
        """
        for index, prepared in self._prepared.items():
            if prepared.method is not None and index in self._memories:
                prepared.method.merge_residual_into(self._memories[index])
        self._prepared.clear()
        self._settings = settings

    def move(self, before: Sequence[Content], after: Sequence[Content]) -> None:
        """Between steps: the same parts lie in other buckets from now on; what was left out of them goes with them."""
        self.use(self._settings)
        errors = {
            part.name: self._memories[content.index][part.start : part.stop]
            for content in before
            if content.index in self._memories
            for part in content.parts
        }
        self._memories.clear()
        for content in after if errors else ():
            memory = self._memories[content.index] = torch.zeros_like(content.flat)
            for part in content.parts:
                if part.name in errors:
                    memory[part.start : part.stop] = errors[part.name]

    def is_idle(self, content: Content) -> bool:
        """Whether at this step a bucket goes as it is, and nothing that was left out is to go with it."""
        if self._step() < self._settings.start_step:
            return True
        return self._settings.method == "none" and content.index not in self._memories

    def sends_all(self, content: Content) -> bool:
        """Whether a bucket goes as it is now and later: no method is chosen, and none left anything."""
        return self._settings.method == "none" and content.index not in self._memories

    def average(self, views: Sequence[Tensor]) -> Reduction:
        """Average parts of a bucket in place, in one message; the rest of it is zero on every rank."""
        joint = torch.cat([view.reshape(-1) for view in views])
        yield self._link.all_reduce(joint.div_(self._link.size))
        for view, part in zip(views, joint.split([view.numel() for view in views]), strict=True):
            view.copy_(part.view(view.shape))

    def reduce(self, content: Content) -> Reduction:
        """Average ``content.flat`` in place: the first collective is under way at the first yield, and after the last
        one the average is there, the same bits on every rank.

        Small parts first: they are under way while the others are coded.
        """
        prepared, values = self._prepare(content), self._corrected_gradient(content)
        is_early = self._step() < self._settings.start_step
        ranges = [(0, len(content.flat))] if is_early else prepared.partition.plain
        plain = self._send_plain(ranges, values, content.flat)
        started = next(plain, None)
        if prepared.method is not None and not is_early:
            yield from prepared.method.exchange(values, content.flat, self._streams)
        if started is not None:
            yield started
            yield from plain

    def messages(self, content: Content) -> list[Message]:
        """What is sent for a bucket once compression has started, by formula: its uncompressed parts, then the
        method's.
        """
        prepared = self._prepare(content)
        plain = (
            [self._link.reduce_message(prepared.partition.plain_count, 4)] if prepared.partition.plain else []
        )
        return plain + ([] if prepared.method is None else prepared.method.messages())

    def memory(self, content: Content) -> Tensor | None:
        """What this rank adds to the bucket's next gradient, like ``flat``; a checkpoint saves it and loads into it.
        Zeros in the beginning; None if nothing was ever left out.
        """
        if self._settings.error_feedback and content.index not in self._memories:
            self._memories[content.index] = torch.zeros_like(content.flat)
        return self._memories.get(content.index)

    def state(self, content: Content) -> list[MethodState]:
        """What the method carries to the next step beside it; a checkpoint saves and loads these too."""
        method = self._prepare(content).method
        return [] if method is None else method.state()

    def uncompressed_reasons(self, content: Content) -> dict[str, str]:
        """Parts that are sent as they are though a method is chosen, and why."""
        return self._prepare(content).partition.uncompressed

    def _prepare(self, content: Content) -> _BucketMethod:
        if content.index not in self._prepared:
            partition = partition_of(content, self._settings)
            method = self._method(content, partition) if partition.spans else None
            self._prepared[content.index] = _BucketMethod(partition, method)
        return self._prepared[content.index]

    def _method(self, content: Content, partition: Partition) -> Method:
        build = _code(self._settings.method, COMPRESSION_METHODS[self._settings.method].build)
        method: Method = build(
            MethodInput(
                self._link, self._settings, content, partition, self._streams, self._carried, self._one_way
            )
        )
        return method

    def _corrected_gradient(self, content: Content) -> Tensor:
        """The gradient and what was left out before: in the memory if errors are to be kept, else in the bucket."""
        memory = self.memory(content)
        if memory is None:
            return content.flat
        if self._settings.error_feedback:
            return memory.add_(content.flat)
        content.flat.add_(self._memories.pop(content.index))
        return content.flat

    def _send_plain(
        self, ranges: list[tuple[int, int]] | tuple[tuple[int, int], ...], values: Tensor, flat: Tensor
    ) -> Reduction:
        """Average ranges in one all-reduce; nothing of them is left."""
        if not ranges:
            return
        for start, stop in ranges if values is not flat else ():
            flat[start:stop].copy_(values[start:stop])
            values[start:stop].zero_()
        views = [flat[start:stop] for start, stop in ranges]
        joint = views[0] if len(views) == 1 else torch.cat(views)
        yield self._link.all_reduce(joint.div_(self._link.size))
        if len(views) > 1:
            torch_private.foreach_copy_(views, joint.split([len(view) for view in views]))


def layer_errors(
    gradient: Tensor, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
) -> list[float]:
    """What each value would lose of a layer, by its method's ``LayerErrors``."""
    errors: LayerErrors = _code(settings.method, COMPRESSION_METHODS[settings.method].errors)
    return errors(gradient, shape, settings, values)


def _code(method: str, name: str) -> Any:
    return getattr(import_module(COMPRESSION_METHODS[method].module), name)
