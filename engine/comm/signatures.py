"""How a tensor lies on the ranks of one group, and how much it takes to bring it from one such signature to another.

After SBP of OneFlow (arXiv 2110.15032, section 3): split along a dimension, whole on every rank (broadcast), or
partial, where the sum over ranks is the tensor. ``boxing`` carries transitions out. Pure.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Signature(NamedTuple):
    """``dim`` means something of a split alone."""

    kind: Literal["split", "broadcast", "partial"]
    dim: int = 0

    def __str__(self) -> str:
        """As papers write it: S(0), B, P."""
        return f"S({self.dim})" if self.kind == "split" else self.kind[0].upper()

    @property
    def of_gradient(self) -> Signature:
        """How the gradient of such a tensor lies: of a whole one each rank has a part of the sum, and the reverse."""
        return {"broadcast": PARTIAL, "partial": REPLICATED}.get(self.kind, self)


REPLICATED, PARTIAL = Signature("broadcast"), Signature("partial")


def split(dim: int) -> Signature:
    """Equal parts along a dimension, in the order of ranks."""
    return Signature("split", dim)


def bytes_between(source: Signature, target: Signature, whole_bytes: float, ranks: int) -> float:
    """What all ranks of a group send together, at least: table 2 of arXiv 2110.15032, same devices.

    ``whole_bytes`` are those of the undivided tensor.
    """
    if source in (target, REPLICATED) or target == PARTIAL:
        return 0.0
    if source == PARTIAL:
        return (2 if target == REPLICATED else 1) * (ranks - 1) * whole_bytes
    return (ranks - 1) * whole_bytes / (1 if target == REPLICATED else ranks)
