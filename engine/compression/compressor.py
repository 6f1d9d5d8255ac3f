"""The interface of gradient compression."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from torch import Tensor

from engine.channel import Waitable
from engine.compression.content import Content, Kept, Message
from engine.compression.draws import Draws
from engine.compression.settings import Settings

#: Yields what it waits for, and goes on when that is through. Nothing runs on another thread: with several buckets
#: under way every rank issues the same collectives in the same order.
Reduction = Generator[Waitable, None, None]


class Compressor(Protocol):
    """Averages gradient buckets over a group; every rank reduces the same buckets in the same order."""

    def reduce(self, content: Content) -> Reduction:
        """Average ``content.flat`` in place: the first collective is under way at the first yield, and after the last
        one the average is there, the same bits on every rank.
        """

    def is_idle(self, content: Content) -> bool:
        """Whether at this step a bucket goes as it is, and nothing that was left out is to go with it."""

    def messages(self, content: Content) -> list[Message]:
        """What is sent for a bucket once compression has started, by formula."""

    def memory(self, content: Content) -> Tensor | None:
        """What this rank adds to the bucket's next gradient, like ``flat``; a checkpoint saves it and loads into it."""

    def kept(self, content: Content) -> list[Kept]:
        """What else it carries to the next step; a checkpoint saves and loads these too."""

    def left_alone(self, content: Content) -> dict[str, str]:
        """Parts that are sent as they are though a method is chosen, and why."""

    def use(self, settings: Settings) -> None:
        """Go on with other settings, between steps. What was left out so far is kept, or sent with the next step."""

    def move(self, before: Sequence[Content], after: Sequence[Content]) -> None:
        """Between steps: the same parts lie in other buckets from now on; what was left out of them goes with them."""


class Method(Protocol):
    """How the runs of one bucket are sent. One object a bucket: it may keep buffers."""

    def exchange(self, values: Tensor, flat: Tensor, draws: Draws) -> Reduction:
        """Average the runs of ``values`` into those of ``flat`` (both fp32 [n]; they may be the same tensor).

        What this rank did not send stays in ``values``, if it is not ``flat``.
        """

    def messages(self) -> list[Message]:
        """What is sent, by formula."""

    def kept(self) -> list[Kept]:
        """What it carries to the next step."""

    def fold(self, memory: Tensor) -> None:
        """Before it is given up: add what it keeps of this rank's errors to ``memory``, like ``flat``."""
