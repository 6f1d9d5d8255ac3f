"""What a block forgets after its forward pass and computes again in its backward pass.

``full`` keeps a block's input alone (arXiv 1604.06174). ``selective`` forgets the attention core (arXiv 2205.05198,
section 5): rotated queries and keys, scores, softmax, and the weighted values that the output matrix reads. It keeps
what the query, key and value matrices gave, so no matrix product is made twice. A fused kernel never keeps scores;
there ``selective`` saves the weighted values [sequence, batch, hidden] and one number a query. A schedule that takes
the gradients of matrices later needs the weighted values until then, and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.config.run_config import RunConfig

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Activations:
    """What happens to a stage's activations between forward and backward.

    The first ``layers`` of the stage are recomputed (all with None); ``offload`` keeps what is left in host memory.
    """

    recompute: Recompute = "none"
    layers: int | None = None
    offload: bool = False

    def of_layer(self, place: int) -> Recompute:
        """The kind for the layer at this place in its stage, counted from 0."""
        return self.recompute if self.layers is None or place < self.layers else "none"


def activations_of(config: RunConfig) -> Activations:
    """What a configuration asks for."""
    memory = config.memory
    return Activations(memory.recompute, memory.recompute_layers, memory.offload in ("activations", "both"))


def again(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """``function(*arguments)``, of which only the arguments are kept for backward.

    Nothing in a model here is random, so no generator's state is kept. The second forward ends with the last tensor
    that backward needs: a matrix product at the end of ``function`` is not made again.
    """
    out: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return out
