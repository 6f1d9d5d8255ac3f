"""From which share on something is called a bottleneck."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Fractions that a finding's share has to exceed.

    Of the step: ``input`` (waiting for data), ``host`` (nothing named runs), ``exposed`` (each operation and axis that
    ranks wait for), ``bubble`` and ``straggler``. Of the memory there is: ``memory``. Of the time: ``clock``.
    """

    input: float = 0.10
    host: float = 0.20
    exposed: float = 0.10
    bubble: float = 0.15
    straggler: float = 0.10
    memory: float = 0.90
    clock: float = 0.10
