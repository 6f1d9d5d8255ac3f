"""A made-up machine for studies: true step times, and the noise that real ones showed. Seconds are simulated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks import _table as table

Array = np.ndarray[Any, np.dtype[np.float64]]
#: Neighbouring steps resemble each other by so much.
ALIKE = 0.3
#: Share of steps that hiccup, and how much longer these take at the most.
HICCUPS, HICCUP_FACTOR = 0.02, 3.0
#: Share of runs that something else slows down, and by how much at the most.
OUTLIERS, OUTLIER_PART = 0.03, 0.2
#: The first steps of a run are slower, by so much and fading over so many.
WARM_UP_PART, WARM_UP_STEPS = 0.3, 1.5
#: How much a machine drifts over a study, a standard deviation.
DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of logarithms: from run to run, and from step to step inside one."""

    run: float
    step: float = 0.02


@dataclass
class Machine:
    """Makes the steps of one run after the other; ``place`` in a study (0 to 1) says how far the machine drifted."""

    noise: Noise
    random: np.random.Generator

    def __post_init__(self) -> None:
        self._drift = float(self.random.normal(0, DRIFT))

    def run(self, step_seconds: float, steps: int, place: float) -> Array:
        """Seconds of each step of a run."""
        random = self.random
        shared = random.normal(0, self.noise.run) + self._drift * place
        if random.random() < OUTLIERS:
            shared += np.log1p(random.uniform(0.05, OUTLIER_PART))
        jitter = self._jitter(steps)
        hiccups = random.random(steps) < HICCUPS
        jitter[hiccups] += np.log(random.uniform(1.2, HICCUP_FACTOR, int(hiccups.sum())))
        warm = WARM_UP_PART * np.exp(-np.arange(steps) / WARM_UP_STEPS)
        return np.asarray(step_seconds * np.exp(shared + jitter) * (1 + warm))

    def _jitter(self, steps: int) -> Array:
        fresh = self.random.normal(0, self.noise.step, steps)
        for step in range(1, steps):
            fresh[step] = ALIKE * fresh[step - 1] + np.sqrt(1 - ALIKE**2) * fresh[step]
        return np.asarray(fresh)


def recorded() -> list[list[float]]:
    """Step times of the layouts that were measured in the lab, one list for each of its two rates and two sets."""
    known = json.loads((table.RESULTS / "prediction_lab.json").read_text(encoding="utf-8"))
    groups: dict[str, list[float]] = {}
    for name, row in known.items():
        kind, _, rest = name.partition(" ")
        groups.setdefault(f"{kind} at {rest.partition(' at ')[2]}", []).append(median(row["steps"]))
    return list(groups.values())
