"""What an outer loop holds beside the weights. Pure."""

from __future__ import annotations

from engine.config import RunConfig
from engine.layout import layout_of

_FP32_BYTES = 4
#: Vectors that an outer step works on; with ZeRO each replica has its part of them.
_STEPPED = {"local": 0, "diloco": 2, "streaming": 2, "co2": 3}


def outer_bytes(config: RunConfig, elements: int) -> int:
    """Of a rank that updates so many elements: what is sent, what an outer step works on, and where a round began."""
    outer, layout = config.outer, layout_of(config)
    if outer.method == "none":
        return 0
    sharers = layout.replicas if layout.zero_stage else 1
    whole = 1 + (outer.method == "co2" and outer.variant == "keep_local")
    return _FP32_BYTES * (whole * elements + _STEPPED[outer.method] * -(-elements // sharers))
