"""Which settings lose something: values that are sent with less than they hold, late, or not at every step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The values that send all there is, at once; anything else changes what is learned. Precision is no part of it: it
#: is chosen for a model, not for its network.
EXACT: dict[str, Any] = {
    "compression.method": "none",
    "compression.weights": "none",
    "compression.experts": "none",
    "outer.method": "none",
    "overlap.delay": 0,
}
#: Sections whose other values act only beside one of those.
_SECTIONS = ("compression.", "outer.")
_BESIDE = (
    "parallel.world_size",
    "train.validate_every",
    "train.timeout_seconds",
    "train.step_timeout_seconds",
)


def lossy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's values, under their dotted keys, that lose something; missing ones are exact."""
    return {key: values[key] for key, exact in EXACT.items() if values.get(key, exact) != exact}


def is_lossy(values: Mapping[str, Any]) -> bool:
    """Whether any does."""
    return any(values.get(key, exact) != exact for key, exact in EXACT.items())


def exactly(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be set in a run's values to make it exact: ``usual`` values, where it has others."""
    keys = [key for key in values if key.startswith(_SECTIONS) or key in EXACT]
    return {key: usual[key] for key in keys if key in usual and values[key] != usual[key]}


def arithmetic(values: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs share of which one is the exact baseline of the other: all values but those that lose something,
    what is recorded and saved, and how long anybody waits.
    """
    left_out = (*_SECTIONS, *EXACT, "profile.", "checkpoint.")
    return {
        key: value for key, value in values.items() if not key.startswith(left_out) and key not in _BESIDE
    }
