"""How one stage's module meets its data-parallel copies: the interface, and the case of a single copy."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from engine.workloads.decoder import Decoder


class Replica(Protocol):
    """A stage that can run forward and backward micro-batch by micro-batch."""

    decoder: Decoder

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output; sends no gradients."""

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Run backward; with ``last`` gradients are averaged over dp when it returns."""

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters by the names of the undivided model."""


class Single:
    """The only copy: nothing is sent."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        out: Tensor = self.decoder(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Plain backward."""
        run_backward(output, gradient)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The decoder's own parameters."""
        return list(self.decoder.named_parameters())


def run_backward(output: Tensor, gradient: Any) -> None:
    """Backward from a loss (no gradient) or from an activation."""
    output.backward(gradient)
