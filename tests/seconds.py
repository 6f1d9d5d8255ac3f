"""Write down what tests take, from a report of pytest: ``python -m tests.seconds REPORT.xml``.

The report is that of ``pytest --junitxml=REPORT.xml``. Of tests whose cases take a second and more, in the mean, what
``make test`` runs is drawn (``tests/support/drawn.py``).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

from tests.support.drawn import SECONDS

#: What takes less is run each time.
LEAST_SECONDS = 1.0


def seconds_of(report: Path) -> dict[str, float]:
    """Mean seconds of a case, by the name of the test; of tests that ran and take long."""
    cases = defaultdict[str, list[float]](list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            file = case.attrib["classname"].replace(".", "/")
            cases[f"{file}.py::{case.attrib['name'].split('[')[0]}"].append(float(case.attrib["time"]))
    means = {name: round(fmean(found), 1) for name, found in sorted(cases.items())}
    return {name: mean for name, mean in means.items() if mean >= LEAST_SECONDS}


def main() -> None:
    """Tests that the report does not have keep what they had."""
    known = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    found = known | seconds_of(Path(sys.argv[1]))
    SECONDS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
