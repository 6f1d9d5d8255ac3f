"""Each page that shows a run, in each state of a run: starting, going, ended, failed; of one rank and of 64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.pages.test_pages import texts, visit

RUN = "20260101-000000-aaaa"
OTHER = "20260101-000000-bbbb"
OOM = "rank 0 ran out of memory in forward"
#: Values, steps written, how it ends, why.
STATES: dict[str, tuple[dict[str, object], int, str | None, str]] = {
    "one rank": ({}, 8, "completed", ""),
    "64 ranks": ({"parallel.dp": 64, "batch.global_batch": 64}, 6, "completed", ""),
    "starting": ({"parallel.dp": 2}, 0, None, ""),
    "going": ({"parallel.dp": 2}, 8, None, ""),
    "failed": ({"parallel.dp": 2}, 6, "oom", OOM),
}
#: Page -> the parameter that chooses a run.
CHOOSERS = {"start": "", "runs": "id", "live": "run", "compare": "ids", "export": "export"}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("page", CHOOSERS)
@pytest.mark.parametrize("state", STATES)
def test_a_page_draws_a_run_in_this_state(home: Path, state: str, page: str) -> None:
    values, steps, ending, reason = STATES[state]
    folder = RunFolder(home, FakeRun(RUN, values, 0.1, 600 if ending is None else steps, ending, reason))
    folder.write(steps)
    RunFolder(home, FakeRun(OTHER, {}, 0.1, 8)).write(8)
    chosen = {"compare": f"{RUN},{OTHER}"}.get(page, RUN)
    app = visit(page, **({CHOOSERS[page]: chosen} if CHOOSERS[page] else {}))
    assert not app.exception
    assert RUN in texts(app) + str([frame.value for frame in app.dataframe]) + str(
        [box.value for box in app.selectbox]
    ) or (page == "start" and state in ("one rank", "64 ranks"))
    if state == "failed" and page in ("runs", "live", "start"):
        assert OOM in texts(app)
