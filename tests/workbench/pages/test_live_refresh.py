"""The page Live in a real browser while a run goes on: what is new is added, and it comes to the whole."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.support.workbench.long_run import LongRun
from tests.workbench.pages.conftest import PATIENCE_MILLISECONDS, Visit
from workbench.figures import steps
from workbench.records.live_snapshot import LiveRun

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CHARTS = ("phases", "rank-steps", "loss", "memory", "cores", "shares", "host", "collectives")
RANK_STEPS = "document.querySelector('.st-key-live-rank-steps .js-plotly-plot')"
LAST_STEP = f"() => {RANK_STEPS}?.data?.[0]?.x?.at(-1)"
#: All numbers of all charts, as Plotly has them.
NUMBERS = """(keys) => Object.fromEntries(keys.map((key) => [key,
  document.querySelector(`.st-key-live-${key} .js-plotly-plot`).data.map((trace) => ["x", "y", "z", "text"].map(
    (name) => trace[name] && Array.from(trace[name], (row) => row?.buffer ? Array.from(row) : row)))]))"""
#: Each connection that a page opens, so that a test can break one, and how often points were added.
WATCHED = """
  window.sockets = [];
  window.WebSocket = class extends WebSocket {
    constructor(...given) { super(...given); window.sockets.push(this); }
  };
"""
COUNTED = """() => { window.added = 0; const own = Plotly.extendTraces;
  Plotly.extendTraces = (...given) => { window.added += 1; return own(...given); }; }"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LongRun]:
    """A run of 8 ranks that has gone on for some time."""
    run = LongRun(tmp_path / "home")
    run.grow(1_500)
    yield run
    for writer in (*run.written.ranks, run.written.launcher, run.written.progress):
        writer.close()


def opened(tab: Visit, address: str, run: LongRun) -> Visit:
    tab.page.add_init_script(WATCHED)
    tab.open(f"{address}/live?run={run.fake.id}")
    shown(tab, run)
    return tab


def shown(tab: Visit, run: LongRun) -> None:
    """Waits until the chart ends as that of the run's records does."""
    last = steps.rank_series(LiveRun(run.folder).read().steps).lines[0].x[-1]
    assert last > run.steps - 20
    tab.page.wait_for_function(f"last => ({LAST_STEP})() === last", arg=last, timeout=PATIENCE_MILLISECONDS)


def numbers(tab: Visit) -> Any:
    return tab.page.evaluate(NUMBERS, list(CHARTS))


def same(one: Visit, other: Visit) -> bool:
    """Whether two tabs come to show the same numbers; neither is older than a look for long."""
    return bool(wait_until(lambda: numbers(one) == numbers(other), 30))


@pytest.mark.drawn(1, of="long visits to a live run")
def test_what_is_added_comes_to_the_whole(
    run: LongRun, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    """A zoom and a hidden line stay, a spike is not lost, and a tab that comes back has missed nothing."""
    address = serve(run.folder.parent)
    tab = opened(visit("light"), address, run)
    tab.page.evaluate(COUNTED)
    tab.page.evaluate(
        f"""async () => {{ await Plotly.relayout({RANK_STEPS}, {{ "xaxis.range": [100, 900] }});
          await Plotly.restyle({RANK_STEPS}, {{ visible: "legendonly" }}, [2]); }}"""
    )
    for more in range(4):
        run.grow(50, spike=(run.steps + 20, 9.0) if more == 1 else None)
        shown(tab, run)
    assert tab.page.evaluate("added") > 0
    hide(tab, True)
    run.grow(1_000)
    hide(tab, False)
    shown(tab, run)
    other = opened(visit("light"), address, run)
    assert same(tab, other)
    assert tab.page.evaluate(f"Math.max(...{RANK_STEPS}.data[3].y)") == 9_000.0
    kept = tab.page.evaluate(f"[{RANK_STEPS}._fullLayout.xaxis.range, {RANK_STEPS}._fullData[2].visible]")
    assert kept == [[100, 900], "legendonly"]
    run.grow(50)
    for one in (tab, other):
        shown(one, run)
    assert same(tab, other), "each tab is told on its own"


def hide(tab: Visit, hidden: bool) -> None:
    """As when another tab covers it for long: nothing of the page runs, and what is sent waits."""
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Page.setWebLifecycleState", {"state": "frozen" if hidden else "active"})


@pytest.mark.drawn(1, of="long visits to a live run")
def test_a_tab_that_lost_its_connection_goes_on(
    run: LongRun, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    address = serve(run.folder.parent)
    tab = opened(visit("light"), address, run)
    tab.page.evaluate("sockets.at(-1).close()")
    run.grow(50)
    shown(tab, run)
    assert tab.page.evaluate("sockets.length") > 1
    assert same(tab, opened(visit("light"), address, run))


@pytest.mark.drawn(1, of="long visits to a live run")
def test_a_second_s_refresh_sends_little(
    run: LongRun, serve: Callable[[Path], str], visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    sizes = list[int]()
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Network.enable")

    def note(event: Any) -> None:
        frame = base64.b64decode(event["response"]["payloadData"])
        if b"-live-rank-steps" in frame:
            sizes.append(len(frame))

    session.on("Network.webSocketFrameReceived", note)
    opened(tab, serve(run.folder.parent), run)
    before = len(sizes)
    for _ in range(3):
        run.grow(50)
        shown(tab, run)
    assert sizes[0] > 40_000 and before < len(sizes)
    assert max(sizes[before:]) < sizes[0] / 5, "8 ranks' last 50 steps, of 1,500"
