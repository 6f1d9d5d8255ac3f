"""The interface of a pipeline stage to the ranks that hold the same stage, and what an optimizer sees of it.

A ``Piece`` says where a rank's part of a parameter lies in the undivided model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn

from engine.comm.channel import Channel, Group
from engine.compression.compressor import GradientCompressor
from engine.compression.interface import Content
from engine.config.compression import Plan
from engine.config.run_config import RunConfig
from engine.model.decoder import Linear, Norm
from engine.model.experts.mixture import Mixture, Router
from engine.model.linear import RingSlice
from engine.model.stage import Stage


@dataclass(frozen=True, slots=True)
class Extent:
    """A rank's local tensor of ``sizes`` begins at ``offsets`` in the whole parameter of ``shape``; a piece of it
    begins at element ``start`` of the flattened local tensor.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int = 0

    def with_start(self, start: int) -> Extent:
        """This extent for a piece that begins at another element."""
        return replace(self, start=start)


def extent_of(sizes: tuple[int, ...], splits: dict[int | None, tuple[int, int]]) -> Extent:
    """A local tensor that is cut evenly: dimension -> (number of parts, which one); None cuts nothing."""
    parts = [splits.get(dim, (1, 0)) for dim in range(len(sizes))]
    return Extent(
        tuple(size * count for size, (count, _) in zip(sizes, parts, strict=True)),
        tuple(size * place for size, (_, place) in zip(sizes, parts, strict=True)),
        sizes,
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """What this rank updates of one parameter.

    ``weight`` shares its memory with the model's parameter, or is its fp32 master copy. ``copies`` is the number of
    ranks of the world that update the very same piece, so that it counts once in the global gradient norm. ``extent``
    is where it lies in the undivided model.
    """

    name: str
    weight: nn.Parameter
    gradient: Callable[[], Tensor]
    decayed: bool
    partial_over_tp: bool
    copies: int
    extent: Extent


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """What compression of a parameter's gradients carries from step to step, in fp32.

    ``name`` tells what it is, and the rank's place among those that hold copies where each carries its own.
    ``extent`` is where it lies in the undivided model. One that ``may_start_anew`` can do so without the others.
    """

    name: str
    values: Tensor
    extent: Extent
    may_start_anew: bool = False


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Pieces that are updated together. After that ``send`` starts to bring them to other ranks, beside the update of
    the next wave; None where ``updated`` does that.
    """

    pieces: list[Piece]
    send: Callable[[], None] | None = None


class CompressedGradients(Protocol):
    """Gradients of a replica that are compressed over one group of ranks, ``copies`` of which hold each parameter: what
    a planner watches and steers.
    """

    compressor: GradientCompressor | None
    #: Sees each bucket's gradient before it is compressed.
    watch: Callable[[Content], None] | None

    @property
    def group(self) -> Group:
        """Over which they go."""

    @property
    def copies(self) -> int:
        """Ranks whose gradients of a parameter are averaged."""

    @property
    def contents(self) -> Sequence[Content]:
        """What is sent, ``turns`` times a step; the values are of no interest."""

    @property
    def turns(self) -> int:
        """One, or one for each micro-batch."""

    def follow(self, plan: Plan) -> None:
        """Between two steps: compress as a plan says where the configuration leaves it to one."""


class Replica(Protocol):
    """A stage that can run forward and backward micro-batch by micro-batch."""

    model: Stage

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output; sends no gradients."""

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Run backward; with ``last`` the step's gradients are complete, and averaging over data ranks begins."""

    def add_gradient(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """Add a gradient that was taken after its backward; ``last`` as there."""

    def keep_gathered(self, keep: bool) -> None:
        """Whether sharded parameters stay gathered after the next forward or backward."""

    def finish(self) -> None:
        """Wait until all gradients are averaged."""

    def pieces(self) -> list[Piece]:
        """Everything this rank updates, in one order on all ranks."""

    def waves(self) -> list[UpdateGroup]:
        """The same pieces in the order in which they are updated."""

    @property
    def has_averages(self) -> bool:
        """Whether there are averaged gradients to apply; the first step has none where they are delayed."""

    def memories(self) -> list[ReplicaMemory]:
        """What compression and delay carry from step to step; waits for what is under way."""

    def mark_loaded(self) -> None:
        """What is carried from step to step was loaded: delayed averages are there to apply."""

    def uncompressed_reasons(self) -> dict[str, str]:
        """Parameters that compression leaves alone though it is on, and why."""

    def compressible_gradients(self) -> Sequence[CompressedGradients]:
        """Gradients that compression can act on, group by group."""

    def reconfigure(self, config: RunConfig) -> None:
        """Between two steps: average gradients from now on as this configuration says."""

    def finish_update(self) -> None:
        """After the optimizer: bring the new values to all that need them, and forget the gradients."""

    def publish_weights(self) -> None:
        """Bring values to all that need them that are new without an update, as after loading a checkpoint."""

    def drain(self) -> None:
        """Wait for all that goes on beside steps."""

    def close(self) -> None:
        """Let go of what would keep parameters and gradients alive after the run; waits for nothing."""


def run_backward(output: Tensor, gradient: Any) -> None:
    """Backward from a loss (no gradient) or from an activation."""
    output.backward(gradient)


def mark_parameters(model: Stage) -> None:
    """Note on each parameter how its module splits it: ``tp_dim``, ``expert_dim`` and ``data_dim``, None where it does
    not; and its ``extent``.
    """
    axes = [module.axis for module in model.modules() if isinstance(module, Mixture)]
    ep = (axes[0].size, axes[0].rank) if axes else (1, 0)
    for module in model.modules():
        tp_dim, expert_dim = getattr(module, "tp_dim", None), getattr(module, "expert_dim", None)
        columns: Channel | None = getattr(module, "columns", None)
        data_dim = None if columns is None else 1
        splits = {tp_dim: (model.tp.size, model.tp.rank), expert_dim: ep}
        if columns is not None:
            splits[data_dim] = columns.size, columns.rank
        for weight in module.parameters(recurse=False):
            weight.tp_dim, weight.expert_dim = tp_dim, expert_dim  # type: ignore[attr-defined]
            weight.data_dim = data_dim  # type: ignore[attr-defined]
            weight.extent = extent_of(tuple(weight.shape), splits)  # type: ignore[attr-defined]


def extent(parameter: nn.Parameter) -> Extent:
    """Where this rank's part of a parameter lies in the undivided model."""
    place: Extent = parameter.extent  # type: ignore[attr-defined]
    return place


def trained_part(parameter: nn.Parameter) -> RingSlice | None:
    """What a step trains of a matrix; None where that is all of it."""
    part: RingSlice | None = getattr(parameter, "part", None)
    return part


def partial_over_tp(parameter: nn.Parameter) -> bool:
    """Whether tp replicates a parameter; its gradient is then partial on each rank."""
    return parameter.tp_dim is None  # type: ignore[attr-defined]


def is_expert(parameter: nn.Parameter) -> bool:
    """Whether a parameter belongs to experts, which are spread over ep."""
    return parameter.expert_dim is not None  # type: ignore[attr-defined]


def is_split_over_data(parameter: nn.Parameter) -> bool:
    """Whether ranks with other tokens hold other columns of a parameter."""
    return parameter.data_dim is not None  # type: ignore[attr-defined]


def wide_parameters(model: Stage) -> dict[str, nn.Parameter]:
    """Parameters by name that compute in fp32 whatever the precision: those of norms and routers."""
    wide = {module.weight for module in model.modules() if isinstance(module, (Norm, Router))}
    return {name: parameter for name, parameter in model.model_parameters().items() if parameter in wide}


def late_parameters(model: Stage) -> list[nn.Parameter]:
    """Matrices whose gradients a schedule takes after their backward."""
    modules = model.modules()
    return [module.weight for module in modules if isinstance(module, Linear) and module.deferred is not None]
