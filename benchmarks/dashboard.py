"""The page beside a run that writes fast, a long run, and ten browsers, in a real browser; from ten minutes on also
what its memory grows by (``--only-live --sessions 1 --seconds 7200``: not times, so any machine tells).

    python -m benchmarks.dashboard [--seconds 120] [--steps 100000] [--looks 5] [--only-long] [--only-live]
        [--sessions 10] [--rate 50] [--save]

Eight ranks' records are written by one process with the writers that ranks use; nothing is trained, so what training
loses is not told here (``benchmarks.readers`` and ``benchmarks.profiling_cost`` tell what the processor loses). How old
the page is is told by a clock outside it: each tenth of a second the last step of the chart in the browser is compared
with when that step was written. The browser runs on the same cores; its share is not the page's. Of several browsers
one is real, and the others ask for the same and draw nothing. Memory is what the page's process has for itself and,
apart, what it has mapped of files: its libraries and records, which the kernel takes back when somebody needs room.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import _table
from benchmarks._sessions import others
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.pages.conftest import CHROMIUM, FLAGS, Visit, start_server

RANKS = 8
LONG, SHORT = "20260101-000000-bbbb", "20260101-000001-bbbb"
#: What a page takes whatever it shows: a run of so few steps is looked at beside the long one.
SHORT_STEPS = 50
#: Of the long run, calls are kept of so many last steps: a long run thins them itself.
DETAILED_STEPS = 2_000
_LOOK_SECONDS = 0.1
_MEMORY_SECONDS = 600
#: Until those who look have all seen their first page.
_SETTLING_SECONDS = 10.0
_CHART = ".st-key-live-phases .js-plotly-plot"
_LAST_STEP = f"""() => {{ const plot = document.querySelector('{_CHART}');
  if (!plot || !plot.data || !plot.data.length) return null;
  const x = plot.data[0].x; return x && x.length ? Number(x[x.length - 1]) : null; }}"""
#: Once the page has run again after a key: seconds since this was asked.
_WAIT_FOR_RERUN = """() => { window.ranAgain = new Promise(done => {
  const app = document.querySelector('[data-testid=stApp]'), began = performance.now(); let ran = false;
  const watch = new MutationObserver(() => {
    if (app.getAttribute('data-test-script-state') !== 'notRunning') { ran = true; return; }
    if (ran) { watch.disconnect(); done((performance.now() - began) / 1e3); } });
  watch.observe(app, { attributes: true, attributeFilter: ['data-test-script-state'] });
  setTimeout(() => done(NaN), 60000); }); }"""
_VALUES = {"parallel.dp": RANKS, "batch.global_batch": 64}


@dataclass
class Seen:
    """What was found while a run was watched: ages and growth in seconds, MiB and shares of a core."""

    ages: list[float] = field(default_factory=list)
    core: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)
    received: float = 0.0
    written: int = 0


def write_live(home: Path, name: str, rate: float, seconds: float, times: Path) -> None:
    """A run that goes on: a step of all ranks ``rate`` times a second, and when each was written."""
    run = FakeRun(name, _VALUES, 1 / rate, int(rate * seconds) + 1, None, started_unix=time.time())
    folder, written = RunFolder(home, run), []
    for number in range(run.steps):
        time.sleep(max(0.0, run.started_unix + number / rate - time.time()))
        folder.write_step(number)
        written.append(time.time())
        if number % 10 == 0:
            np.save(times, written)
    np.save(times, written)


def write_long(home: Path, steps: int, name: str = LONG) -> None:
    """A run of so many steps that has ended."""
    run = FakeRun(name, _VALUES, 0.1, steps)
    folder = RunFolder(home, run)
    calls, none = run.calls(), list[Any]()
    for number in range(steps):
        run.calls = (lambda: calls) if number >= steps - DETAILED_STEPS else lambda: none  # type: ignore[method-assign]
        folder.write_step(number)
    folder.end()


@contextmanager
def _writing(home: Path, name: str, rate: float, seconds: float, times: Path) -> Iterator[None]:
    writer = multiprocessing.get_context("spawn").Process(
        target=write_live, args=(home, name, rate, seconds, times), daemon=True
    )
    writer.start()
    try:
        yield
    finally:
        writer.terminate()
        writer.join()


def watch(tab: Visit, server: psutil.Process, times: Path, seconds: float) -> Seen:
    """Look at the tab again and again while the run goes on; then what each look was behind the records."""
    seen, looks = Seen(), list[tuple[float, int]]()
    began, used = time.monotonic(), _processor(server)
    sent = _counted(tab)
    while time.monotonic() - began < seconds:
        step = tab.page.evaluate(_LAST_STEP)
        if step is not None:
            looks.append((time.time(), int(step)))
        seen.memory.append((time.monotonic() - began, _memory(server)[0]))
        tab.page.wait_for_timeout(_LOOK_SECONDS * 1e3)
    took = time.monotonic() - began
    seen.core = (_processor(server) - used) / took
    seen.received = sum(sent) / took
    written = np.load(times)
    seen.written = len(written)
    seen.ages = [at - written[step + 1] for at, step in looks if step + 1 < len(written)]
    return seen


def _memory(process: psutil.Process) -> tuple[float, float]:
    """Its own resident memory and that of files it has mapped, in MiB."""
    used = process.memory_info()
    return (used.rss - used.shared) / 2**20, used.shared / 2**20


def _processor(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _counted(tab: Visit) -> list[int]:
    """Bytes of each frame that a tab gets, as they come."""
    sizes: list[int] = []
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Network.enable")
    session.on("Network.webSocketFrameReceived", lambda event: sizes.append(_frame_bytes(event["response"])))
    return sizes


def _frame_bytes(frame: dict[str, Any]) -> int:
    """A frame of bytes is told in base64."""
    payload: str = frame["payloadData"]
    return len(payload) * 3 // 4 - payload.count("=", -2) if frame["opcode"] == 2 else len(payload.encode())


def first_view(tab: Visit, address: str, chart: str) -> float:
    """Seconds from asking for a page until its chart is drawn."""
    began = time.monotonic()
    tab.page.goto(address)
    tab.page.wait_for_selector(f"{chart} .main-svg", timeout=120_000)
    return time.monotonic() - began


def _age_row(name: str, seen: Seen) -> list[str]:
    ages = np.array(seen.ages)
    p50, p95 = np.percentile(ages, [50, 95])
    grown = _growth(seen.memory)
    return [
        name,
        f"{p50:.2f} / {p95:.2f} / {ages.max():.2f}",
        f"{seen.core:.2f}",
        f"{seen.memory[-1][1]:.0f} ({grown:+.1f} a minute)",
        f"{seen.received / 1e3:.0f}",
        f"{seen.written:,} steps, {len(ages):,} looks",
    ]


def _growth(memory: list[tuple[float, float]]) -> float:
    """MiB a minute over the second half: the first look at a run takes what it takes."""
    late = np.array(memory[len(memory) // 2 :])
    return float(np.polyfit(late[:, 0], late[:, 1], 1)[0] * 60)


def _memory_rows(name: str, memory: list[tuple[float, float]]) -> list[list[str]]:
    """Of a long watch: the page's process every ten minutes, and what it grew by since the first ten."""
    marks = range(_MEMORY_SECONDS, int(memory[-1][0]) + 1, _MEMORY_SECONDS)
    seconds, used = np.array(memory).T
    found = [float(np.median(used[(seconds > mark - 60) & (seconds <= mark)])) for mark in marks]
    return [
        [name, f"{mark // 60}", f"{one:.0f}", f"{100 * (one / found[0] - 1):+.1f} %"]
        for mark, one in zip(marks, found, strict=True)
    ]


def _live_rows(
    home: Path, new_tab: Callable[[], Visit], scratch: Path, given: Any
) -> tuple[list[list[str]], list[list[str]]]:
    process, address = start_server(home, scratch / "live.log")
    server, times = psutil.Process(process.pid), scratch / "times.npy"
    rows, memory = list[list[str]](), list[list[str]]()
    try:
        for count in dict.fromkeys((1, given.sessions)):
            name = f"20260101-000000-{count:04x}"
            with _writing(home, name, given.rate, given.seconds + 120, times):
                while not times.exists() or not (home / name).exists():
                    time.sleep(0.1)
                tab = new_tab()
                first_view(tab, f"{address}/live?run={name}", _CHART)
                with others(address, "live", f"run={name}", count - 1):
                    tab.page.wait_for_timeout(_SETTLING_SECONDS * 1e3)
                    seen = watch(tab, server, times, given.seconds)
                beside = f"{count} browsers" if count > 1 else "1 browser"
                rows.append(_age_row(beside, seen))
                if given.seconds >= _MEMORY_SECONDS:
                    memory += _memory_rows(beside, seen.memory)
                tab.page.context.close()
            times.unlink()
    finally:
        process.terminate()
        process.wait(20)
    return rows, memory


def refresh(tab: Visit) -> float:
    """Seconds that a page which is shown already takes to run again, from the key to its last word."""
    tab.page.evaluate(_WAIT_FOR_RERUN)
    tab.page.keyboard.press("r")
    return float(tab.page.evaluate("() => window.ranAgain"))


def copies_of(home: Path, count: int, run: str = LONG) -> list[str]:
    """A run under other names, for looks of a page that has never seen it; its files are the same ones."""
    names = [f"{run[:-4]}{number:04x}" for number in range(count)]
    for name in names:
        shutil.copytree(home / run, home / name, copy_function=os.link)
    return names


def _long_rows(home: Path, new_tab: Callable[[], Visit], scratch: Path, given: Any) -> list[list[str]]:
    write_long(home, given.steps)
    write_long(home, SHORT_STEPS, SHORT)
    views = {
        "Runs": ("runs?id=", ".st-key-run-phases .js-plotly-plot"),
        "Live": ("live?run=", _CHART),
        "Steps": ("steps?run=", ".st-key-steps-heat .js-plotly-plot"),
    }
    names = {run: iter(copies_of(home, len(views) * given.looks, run)) for run in (SHORT, LONG)}
    process, address = start_server(home, scratch / "long.log")
    server, rows = psutil.Process(process.pid), []
    try:
        new_tab().open(f"{address}/machine")
        for (title, (place, chart)), run in itertools.product(views.items(), names):
            firsts, agains, refreshes, costs = list[float](), list[float](), list[float](), list[float]()
            for name in itertools.islice(names[run], given.looks):
                tab, used = new_tab(), _processor(server)
                firsts.append(first_view(tab, f"{address}/{place}{name}", chart))
                costs.append(_processor(server) - used)
                agains.append(first_view(tab, f"{address}/{place}{name}", chart))
                tab.settle()
                refreshes.append(refresh(tab))
                tab.page.context.close()
            own, mapped = _memory(server)
            memory = f"{own:.0f} + {mapped:.0f}"
            what = f"{title}, {SHORT_STEPS} steps" if run == SHORT else title
            rows.append([what, *map(_middle_and_most, (firsts, costs, agains, refreshes)), memory])
            print(f"{title} was looked at {given.looks} times", file=sys.stderr, flush=True)
    finally:
        process.terminate()
        process.wait(20)
    return rows


def _middle_and_most(seconds: list[float]) -> str:
    return f"{np.median(seconds):.2f} / {max(seconds):.2f}"


def main() -> None:
    """Two tables."""
    from playwright.sync_api import sync_playwright

    parser = _table.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of watching, each")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--looks", type=int, default=5, help="at each view of the long run")
    parser.add_argument("--only-long", action="store_true", help="leave out the run that goes")
    parser.add_argument("--only-live", action="store_true", help="leave out the run that has ended")
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--rate", type=float, default=50.0, help="steps a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        scratch, browser = Path(folder), playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def new_tab() -> Visit:
            return Visit(browser.new_context(viewport={"width": 1440, "height": 950}).new_page())

        (scratch / "live").mkdir()
        (scratch / "long").mkdir()
        long = [] if given.only_live else _long_rows(scratch / "long", new_tab, scratch, given)
        live, memory = ([], []) if given.only_long else _live_rows(scratch / "live", new_tab, scratch, given)
        browser.close()
    header = ["view (each: median / largest)", "first look, s", "of the processor, s", "in a new page, s", "refresh, s",
              "page's process, MiB: own + mapped files"]  # fmt: skip
    title = f"A run of {given.steps:,} steps on {RANKS} ranks in the browser"
    if long:
        _table.show("dashboard_long", title, header, long, given.save)
    if not live:
        return
    header = ["beside it", "age of what is shown: p50 / p95 / largest, s", "page's process, cores",
              "its own memory, MiB", "to a browser, kB/s", "over"]  # fmt: skip
    title = f"A run of {RANKS} ranks that writes {given.rate:g} steps a second, on the page Live"
    _table.show(
        "dashboard_live", title, header, live, given.save and not memory
    )  # which is of a quiet machine
    if memory:
        header = ["beside it", "minutes", "page's own memory, MiB", "since the first row"]
        _table.show("dashboard_memory", f"{title}: memory", header, memory, given.save)


if __name__ == "__main__":
    main()
