"""A page server for a home folder, a headless Chromium, and a page that notes every request it makes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_SECONDS = 60.0
#: Charts are drawn by the browser on the same two cores that everything else runs on.
PATIENCE_MILLISECONDS = 60_000
WIDTH, HEIGHT = 1400, 950
#: Tables and charts are drawn anew when the window grows.
DRAWING_MILLISECONDS = 1_500


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Start a page server for a home folder; returns its address. One server per home."""
    servers: dict[Path, tuple[subprocess.Popen[bytes], str]] = {}

    def start(home: Path) -> str:
        if home not in servers:
            log = tmp_path_factory.mktemp("server") / "log"
            servers[home] = start_server(home, log)
        return servers[home][1]

    yield start
    for process, _ in servers.values():
        process.terminate()
        process.wait(20)


def start_server(home: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A page server for a home folder, once it answers, and its address; its output goes to ``log``."""
    port = _free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "app.py"), "--server.port", str(port)]
    with log.open("wb") as output:
        environment = os.environ | {"WORKBENCH_HOME": str(home)}
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(address):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the page server did not start: {log.read_text('utf-8', 'replace')[-2000:]}")
        time.sleep(0.1)
    return process, address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")  # while it is open the main thread can run no other event loop
def browser() -> Iterator[Any]:
    """A headless Chromium for the tests of a file; files of other folders may come between two that use one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@dataclass
class Visit:
    """A browser tab, and every address it asked for."""

    page: Any
    requests: list[str] = field(default_factory=list)

    def external(self) -> list[str]:
        """Requests that left this machine."""
        parsed = [urlparse(request) for request in self.requests]
        return [url.geturl() for url in parsed if url.scheme in ("http", "https", "ws", "wss")
                and url.hostname not in ("127.0.0.1", "localhost")]  # fmt: skip

    def open(self, address: str) -> None:
        """Go to an address and wait until the page has run once."""
        self.page.goto(address)
        self.page.wait_for_selector("[data-testid=stApp] h1", timeout=PATIENCE_MILLISECONDS)
        self.settle()

    def settle(self) -> None:
        """Wait until the script has run and every chart is drawn, except in hidden tabs: those draw when shown."""
        self.page.wait_for_selector(
            "[data-testid=stApp][data-test-script-state=notRunning]", timeout=PATIENCE_MILLISECONDS
        )
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.workbench-chart')]"
            ".every(chart => chart.offsetParent === null || chart.querySelector('.main-svg'))",
            timeout=PATIENCE_MILLISECONDS,
        )

    def screenshot(self, folder: Path | None, name: str) -> None:
        """The whole page as a picture; Streamlit scrolls inside, so the window is made as tall as the page."""
        if folder is None:
            return
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": WIDTH, "height": max(HEIGHT, int(height))})
        self.page.wait_for_timeout(DRAWING_MILLISECONDS)
        self.page.screenshot(path=folder / f"{name}.png")
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


_TABS = pytest.StashKey[list[Visit]]()
#: Of a tab's words in the report of a test that failed.
_SHOWN_CHARACTERS = 3_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where each tab of a failed test was, and what stood there."""
    report = yield
    if report.failed and report.when == "call":
        for tab in item.stash.get(_TABS, []):
            report.sections.append((f"tab at {tab.page.url}", _words_of(tab)))
    return report


def _words_of(tab: Visit) -> str:
    try:
        return str(tab.page.inner_text("body", timeout=2_000))[:_SHOWN_CHARACTERS]
    except Exception as error:  # a tab that crashed or was closed is not the failure to report
        return f"no words: {error}"


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Visit]]:
    """Opens tabs 1400 pixels wide, with a light or a dark system theme."""
    contexts = []
    tabs = request.node.stash.setdefault(_TABS, [])

    def open_tab(scheme: str = "light") -> Visit:
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        tab = Visit(context.new_page())
        tabs.append(tab)
        tab.page.set_default_timeout(PATIENCE_MILLISECONDS)
        context.on("request", lambda request: tab.requests.append(request.url))
        return tab

    yield open_tab
    for context in contexts:
        context.close()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """A home whose live run takes another step each fifth of a second."""
    home = tmp_path / "growing"
    command = [sys.executable, "-m", "tests.support.workbench.synthetic", str(home)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield home
        process.kill()


@pytest.fixture(scope="session")
def screenshots() -> Path | None:
    """Where pictures go, which take some seconds a test: WORKBENCH_SCREENSHOTS. None are made where it is not set."""
    kept = os.environ.get("WORKBENCH_SCREENSHOTS")
    if not kept:
        return None
    folder = Path(kept)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
