"""What a summary says about plans of compression."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A value of ``method`` for each layer from ``step`` on, where ``default`` was the value of all.

    Bytes go over the wire in a step, by formula and as the mean over ranks: with the default everywhere, with what held
    before, and with this plan. ``error`` is the sum over layers of what they lose of the gradients that the plan was
    made for, ``budget`` what it may be. Without layers the default was kept. A plan that was taken over from the run
    ``taken_from`` was made there; its numbers are there too.
    """

    step: int
    method: str
    default: float
    layers: dict[str, float] = field(default_factory=dict)
    bytes_uniform: float | None = None
    bytes_before: float | None = None
    bytes_after: float | None = None
    error: float | None = None
    error_uniform: float | None = None
    budget: float | None = None
    #: That training waited for it.
    seconds: float | None = None
    taken_from: str | None = None
