"""The constants that ship with the package: fitted to published tables by ``benchmarks/shipped_constants.py``."""

from __future__ import annotations

import functools
import json

from tuning.predict.cluster.csv_table import DATA
from tuning.predict.fit.calibrate import Calibrated

FILE = DATA / "constants.json"
#: Kinds of devices in those tables; of any other one the constants say less.
ACCELERATORS = ("a100-40gb", "a100-80gb", "h100-sxm")
SOURCE = (
    "fitted by benchmarks/shipped_constants.py to the tables of vTrain (1 node, and 64 to 512 devices) "
    "and llm-foundry"
)


@functools.cache
def calibrated() -> Calibrated:
    """Constants, and the error that they have on a table that they were not fitted to."""
    return Calibrated.from_dict(json.loads(FILE.read_text(encoding="utf-8")))
