"""Learning rates that fall, and optimizers, as other trainers write them.

Here a rate falls from the end of the warm-up to the last step. Where a trainer says no number of steps, or has no step
left after the warm-up, nothing falls.
"""

from __future__ import annotations

from typing import Any

from engine.config.errors import InputError
from workbench.export.mapping.rows import Values

RATE, RISE, KIND = "train.learning_rate", "train.learning_rate_warmup", "train.learning_rate_schedule"
FLOOR, STEPS, OPTIMIZER = "train.learning_rate_floor", "train.steps", "train.optimizer"
CONSTANT = "constant"
RATE_SCHEDULES = (CONSTANT, "linear", "cosine")


def kind_of(values: Values) -> str:
    """The schedule by its name here; one that falls to the whole rate is constant."""
    return str(values[KIND]) if values.get(FLOOR, 0.0) < 1 else CONSTANT


def least_rate(values: Values) -> float:
    """The rate that it falls to."""
    return float(values[RATE]) * float(values.get(FLOOR, 0.0))


def floor_of(least: float | None, rate: float | None) -> float:
    """The floor of a least rate, without the last digits that a product of two numbers leaves behind."""
    return float(f"{(least or 0.0) / rate:.12g}") if rate else 0.0


def read_fall(kind: str, floor: float, steps: int | None, rise: int) -> dict[str, Any]:
    """The settings of a schedule by its name here, over so many steps with so many of warm-up."""
    if kind == CONSTANT or floor >= 1:
        return {KIND: CONSTANT}
    return {KIND: kind, FLOOR: floor} if steps is not None and steps > rise else {}


def whole_floor(values: Values) -> bool:
    """Whether a floor comes back from a least rate: one of 1 is a constant rate."""
    floor = float(values[FLOOR])
    return floor_of(least_rate(values), values[RATE]) == floor and floor < 1


def kind_arrives(values: Values) -> bool:
    """Whether a schedule comes back as itself."""
    return bool(values[KIND] == kind_of(values))


def read_betas(key: str, betas: Any) -> dict[str, Any]:
    """Adam's two decays.

    Raises:
        InputError: they are not two numbers.
    """
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise InputError(key, betas, "give two numbers, such as [0.9, 0.999]")
    return {"train.beta1": betas[0], "train.beta2": betas[1]}
