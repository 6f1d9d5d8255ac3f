"""What is said about a step: one finding with its evidence, its threshold and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gain:
    """The most that a knob can win, as a fraction of the step's time, and how that was worked out."""

    fraction: float
    formula: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding. ``share`` is what is compared with ``threshold``, whose name is ``threshold_name``; both are None
    for ``compute_bound``, which holds where nothing else does.

    ``seconds`` are lost in a step, None where no time can be told. ``bytes`` are the payload per step and rank.
    ``knobs`` are keys of a run's configuration, ``knob`` says how to turn them. What older versions wrote has only the
    first four fields.
    """

    name: str
    evidence: str
    threshold: float | None
    knob: str
    threshold_name: str | None = None
    share: float | None = None
    seconds: float | None = None
    axis: str | None = None
    operation: str | None = None
    rank: int | None = None
    host: str | None = None
    bytes: float | None = None
    bus_bandwidth: float | None = None
    peak_fraction: float | None = None
    knobs: list[str] = field(default_factory=list)
    gain: Gain | None = None
