"""Outer methods by the names that configurations use, and what each of them asks for. Pure, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Gap = Literal["none", "scalar", "tensor", "element"]
Variant = Literal["paper", "delayed", "keep_local"]

#: Nesterov momentum of DiLoCo and its streaming form (arXiv 2311.08105, 2501.18512).
_NESTEROV_MOMENTUM = 0.9
#: CO2's momentum by number of ranks: up to so many of them; as its public code sets it where nobody does.
_CO2_MOMENTA = ((16, 0.0), (32, 0.2), (64, 0.5))
_CO2_LARGEST_MOMENTUM = 0.6


@dataclass(frozen=True)
class OuterMethod:
    """Facts about a method.

    ``paper`` is its arXiv number. ``module`` has its code: ``build`` there makes the ``OuterLoop`` of a rank from a
    ``LoopInput`` (``engine/parallel/local_sgd/rounds.py``).
    ``fields`` of the section ``outer`` act with it, beside the number of replicas and the period; a method without
    ``learning_rate`` goes on from the mean itself. ``learning_rate`` and ``momentum``, the latter by the number of
    ranks, are those of its authors. An outer step works on so many fp32 copies of the weights (``step_copies``), of
    which each replica has a part under ZeRO; ``whole_copies``, by the variant, every replica has whole. ``overlaps``:
    averages travel beside the next steps. An average is taken over ``late_steps`` (by period and overlap) after it was
    sent. ``offered`` methods are in the space of a study that names none.
    """

    paper: str
    module: str
    build: str
    fields: tuple[str, ...] = ()
    learning_rate: float = 1.0
    momentum: Callable[[int], float] = lambda ranks: 0.0
    step_copies: int = 0
    whole_copies: Callable[[Variant], int] = lambda variant: 1
    overlaps: bool = False
    late_steps: Callable[[int, int], int] = lambda period, overlap: 0
    offered: bool = True

    def has(self, field: str) -> bool:
        """Whether a field of the section ``outer`` acts with it."""
        return field in self.fields


def _nesterov_momentum(ranks: int) -> float:
    return _NESTEROV_MOMENTUM


def _co2_momentum(ranks: int) -> float:
    return next((momentum for most, momentum in _CO2_MOMENTA if ranks <= most), _CO2_LARGEST_MOMENTUM)


_FRAGMENTS = "engine.parallel.local_sgd.diloco"
_STEP_FIELDS = ("learning_rate", "momentum")
#: By the names that configurations use, beside "none".
OUTER_METHODS: dict[str, OuterMethod] = {
    "local": OuterMethod("1805.09767", _FRAGMENTS, "FragmentLoop"),
    "diloco": OuterMethod(
        "2311.08105",
        _FRAGMENTS,
        "FragmentLoop",
        fields=_STEP_FIELDS,
        learning_rate=0.7,
        momentum=_nesterov_momentum,
        step_copies=2,
    ),
    "streaming": OuterMethod(
        "2501.18512",
        _FRAGMENTS,
        "FragmentLoop",
        fields=(*_STEP_FIELDS, "fragments", "overlap", "mixing"),
        learning_rate=0.4,
        momentum=_nesterov_momentum,
        step_copies=2,
        overlaps=True,
        late_steps=lambda period, overlap: overlap,
    ),
    "co2": OuterMethod(
        "2401.16265",
        "engine.parallel.local_sgd.co2",
        "Co2Loop",
        fields=(*_STEP_FIELDS, "clip", "gap", "variant"),
        momentum=_co2_momentum,
        step_copies=3,
        whole_copies=lambda variant: 2 if variant == "keep_local" else 1,
        overlaps=True,
        late_steps=lambda period, overlap: period,
    ),
}


def names() -> tuple[str, ...]:
    """All that ``outer.method`` can be."""
    return ("none", *OUTER_METHODS)
