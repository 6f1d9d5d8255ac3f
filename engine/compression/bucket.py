"""A bucket from its gradient to its average: error memory, what is compressed, and what is sent as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.compression.interface import (
    Content,
    Link,
    Message,
    Method,
    MethodState,
    Partition,
    Reduction,
    partition_of,
)
from engine.compression.randomness import Draws
from engine.config.compression import Settings
from profilers import torch_private

#: Makes a method for one bucket, of which some runs are compressed.
Make = Callable[[Settings, Content, Partition], Method]


@dataclass(frozen=True, slots=True)
class _Prepared:
    partition: Partition
    method: Method | None


class GradientCompressor:
    """Error feedback as in arXiv 1901.09847: what a rank did not send is added to its next gradient.

    The memory lies like the bucket, whatever the method: it outlives a change of settings, and what a method without
    error feedback finds in it goes out with the next gradient.
    """

    def __init__(
        self, link: Link, settings: Settings, make: Make, draws: Draws, step: Callable[[], int]
    ) -> None:
        self._link, self._settings, self._make, self._step = link, settings, make, step
        self._draws = draws
        self._memories: dict[int, Tensor] = {}
        self._prepared: dict[int, _Prepared] = {}

    @property
    def settings(self) -> Settings:
        """Those in use."""
        return self._settings

    def use(self, settings: Settings) -> None:
        """Methods are made anew; what they kept of errors goes to the memory."""
        for index, prepared in self._prepared.items():
            if prepared.method is not None and index in self._memories:
                prepared.method.fold(self._memories[index])
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

    def reduce(self, content: Content) -> Reduction:
        """Small parts first: they are under way while the others are coded."""
        prepared, values = self._of(content), self._corrected(content)
        is_early = self._step() < self._settings.start_step
        ranges = [(0, len(content.flat))] if is_early else prepared.partition.plain
        plain = self._send_plain(ranges, values, content.flat)
        started = next(plain, None)
        if prepared.method is not None and not is_early:
            yield from prepared.method.exchange(values, content.flat, self._draws)
        if started is not None:
            yield started
            yield from plain

    def messages(self, content: Content) -> list[Message]:
        """Of the parts left alone, then the method's."""
        prepared = self._of(content)
        plain = [self._link.reduced(prepared.partition.plain_count, 4)] if prepared.partition.plain else []
        return plain + ([] if prepared.method is None else prepared.method.messages())

    def memory(self, content: Content) -> Tensor | None:
        """Zeros in the beginning; None if nothing was ever left out."""
        if self._settings.error_feedback and content.index not in self._memories:
            self._memories[content.index] = torch.zeros_like(content.flat)
        return self._memories.get(content.index)

    def state(self, content: Content) -> list[MethodState]:
        """The method's."""
        method = self._of(content).method
        return [] if method is None else method.state()

    def uncompressed(self, content: Content) -> dict[str, str]:
        """As the settings deal the bucket."""
        return self._of(content).partition.uncompressed

    def _of(self, content: Content) -> _Prepared:
        if content.index not in self._prepared:
            parts = partition_of(content, self._settings)
            method = self._make(self._settings, content, parts) if parts.runs else None
            self._prepared[content.index] = _Prepared(parts, method)
        return self._prepared[content.index]

    def _corrected(self, content: Content) -> Tensor:
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
        together = views[0] if len(views) == 1 else torch.cat(views)
        yield self._link.all_reduce(together.div_(self._link.size))
        if len(views) > 1:
            torch_private.foreach_copy_(views, together.split([len(view) for view in views]))
