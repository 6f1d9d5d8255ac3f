"""Constants of kinds of devices that are in none of the shipped tables, each fitted to what was published of it.

Each file in ``data/`` that is named here is written by a script in ``benchmarks/``, with the error of what it left out.
"""

from __future__ import annotations

import functools
import json
import math
from typing import NamedTuple

from tuning.predict.cluster.csv_table import DATA
from tuning.predict.fit.calibrate import CalibratedConstants


class ConstantsFile(NamedTuple):
    """Where constants of a kind of device are, and in words what they were fitted to."""

    file: str
    source: str


#: By accelerator.
FITTED = {
    "mi250x-gcd": ConstantsFile(
        "constants_mi250x.json",
        "fitted by benchmarks/prediction_frontier.py, from the shipped constants, to the three percentages of peak in "
        "the abstract of arXiv 2312.12705 at the layouts of its authors' launch scripts",
    )
}


@functools.cache
def find_constants(accelerator: str) -> CalibratedConstants | None:
    """Those of a kind of device; None where it has none of its own."""
    if accelerator not in FITTED:
        return None
    text = (DATA / FITTED[accelerator].file).read_text(encoding="utf-8")
    return CalibratedConstants.from_dict(json.loads(text))


def note(accelerator: str, constants: CalibratedConstants) -> str:
    """What the answer is as sure as."""
    low, high = (f"{100 * math.expm1(-end):+.0f} %" for end in (constants.high, constants.low))
    return (
        f"constants of {accelerator} were fitted to {constants.trials:,} published figures; by how far each was from "
        f"what constants of the others predict, 90 % are within {low} to {high}"
    )
