"""Labs of one island."""

from __future__ import annotations

from engine.config.formulas.network import Shape


def even_shape(hosts: int, rate_mbit: float | None = None) -> Shape:
    """One island, all links of one rate in 10^6 bits per second, or without one."""
    return Shape((hosts,), (round((rate_mbit or 0) * 1000),))
