"""Data parallelism with whole parameters on each rank: gradients averaged in buckets while backward goes on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from engine.config import RunConfig
from engine.parallel.averaging import Averaged
from engine.parallel.replica import Memory, Piece, run_backward
from engine.workloads.decoder import Decoder


class DataParallel:
    """A stage and its parameters in parts, each averaged over the ranks that hold copies of it."""

    def __init__(self, decoder: Decoder, parts: Sequence[Averaged]) -> None:
        self.decoder, self.parts = decoder, parts

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.decoder(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; the last one starts averaging bucket by bucket while it runs."""
        if last:
            for part in self.parts:
                part.buckets.arm()
        run_backward(output, gradient)

    def add_gradient(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """Into its bucket; the last one of a step may fill it."""
        next(part for part in self.parts if parameter in part.buckets.gradients).buckets.add(
            parameter, gradient, last
        )

    def keep_gathered(self, keep: bool) -> None:
        """Whole parameters are always there."""

    def finish(self) -> None:
        """Wait for the buckets that are not through."""
        for part in self.parts:
            part.buckets.finish()

    def pieces(self) -> list[Piece]:
        """Those of all parts."""
        return [piece for part in self.parts for piece in part.pieces()]

    def memories(self) -> list[Memory]:
        """Those of all parts."""
        return [memory for part in self.parts for memory in part.memories()]

    def left_alone(self) -> dict[str, str]:
        """Those of all parts."""
        return {name: reason for part in self.parts for name, reason in part.left_alone().items()}

    def turn(self, config: RunConfig) -> None:
        """All parts."""
        for part in self.parts:
            part.turn(config)

    def updated(self) -> None:
        """Bring new values where they are needed, and clear the buckets."""
        for part in self.parts:
            part.updated()
