"""What building one stage of a rank showed; it travels from the process that builds to the one that asked."""

from __future__ import annotations

from dataclasses import dataclass

from engine.activations import Kept


@dataclass(frozen=True, slots=True)
class Counted:
    """One stage's parameters on a rank as the engine splits them; ``whole`` ones are those before ZeRO 2 and 3.

    ``gradient_bytes`` are those of what the rank updates, or sums. Optimizer bytes hold AdamW's state, and the fp32
    copies of parameters that have one.
    """

    parameters: int
    whole: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """One stage of one rank."""

    stage: int
    counted: Counted
    kept: Kept
