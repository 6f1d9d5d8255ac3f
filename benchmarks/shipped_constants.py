"""The constants that ship with the package, fitted to the published tables in ``tuning/predict/cluster/data``.

    python -m benchmarks.shipped_constants [--save]

Each table in turn is predicted by constants that were fitted to the others: the error that is kept with the constants
is that of a table never seen. ``--save`` writes ``tuning/predict/cluster/data/constants.json``.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np

from benchmarks import _published as published
from benchmarks import _table as table
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import CalibratedConstants, TrialMeasurements
from tuning.predict.model import constants
from tuning.predict.model.cases import Cases

HEADER = ("constant", "fitted", "believed before", "may move by")


def tables() -> dict[str, TrialMeasurements]:
    """Trials of each shipped table that constants are fitted to."""
    return {
        "vtrain_single": published.single(published.FILES["vtrain_single"]),
        "vtrain_multi": published.multi(published.FILES["vtrain_multi"]),
        "llmfoundry": published.fsdp(published.FILES["llmfoundry"], "model"),
    }


def measured() -> TrialMeasurements:
    """All of them, grouped by table."""
    parts = tables()
    names = [np.full(len(part.seconds), name) for name, part in parts.items()]
    return TrialMeasurements(
        Cases.join([part.cases for part in parts.values()]),
        published.stacked([row for part in parts.values() for row in published.each(part)]),
        np.concatenate([part.seconds for part in parts.values()]),
        np.concatenate(names),
    )


def rows(found: CalibratedConstants) -> list[list[str]]:
    """A line for each constant; a factor says how far its belief let it move, at one standard deviation."""
    believed = asdict(constants.START)
    return [
        [name, f"{value:.3g}", f"{believed[name]:.3g}", _freedom(name)]
        for name, value in asdict(found.constants).items()
    ]


def _freedom(name: str) -> str:
    deviation = constants.FREE.get(name)
    return "held" if deviation is None else f"x {np.exp(deviation):.2f}"


def main() -> None:
    """Print the constants and their error; keep them if asked to."""
    given = table.parser(__doc__).parse_args()
    found = calibrate.calibrate(measured(), most=published.EFFECTIVE_ROWS)
    span = f"{np.exp(-found.high) - 1:+.0%} to {np.exp(-found.low) - 1:+.0%}"
    title = f"Shipped constants: {found.trials:,} rows; 90 % of a table never seen within {span}"
    table.show("shipped_constants", title, HEADER, rows(found), given.save)
    if given.save:
        calibrate.SHIPPED_FILE.write_text(json.dumps(found.as_dict(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
