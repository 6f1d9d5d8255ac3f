"""A page that listens beyond this machine, in a real browser; and names that are HTML, Markdown or LaTeX."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.run import run_folder
from tests.workbench.commands.test_bad_input import free_port
from tests.workbench.pages.conftest import ROOT, Visit
from tests.workbench.pages.homes import full_home
from tuning.storage.study_folder import STUDIES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EVIL = (
    "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> **bold** _it_ `code` "
    "[go](javascript:document.title='taken') [out](https://elsewhere.example) https://elsewhere.example/x "
    "$x^2$ :red[red] :smile: ![pic](https://elsewhere.example/p.png) ~~gone~~ # head"
)


class Links(NamedTuple):
    """Both links that the command line printed, as this machine reaches them."""

    owner: str
    reader: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full home, with markup for names and reasons."""
    home = tmp_path_factory.mktemp("markup")
    full_home(home)
    failed = next(folder for folder in home.iterdir() if folder.name.endswith("03f3"))
    status = run_folder.read_json(failed / run_folder.STATUS) or {}
    status["outcome"]["reason"], status["labels"] = EVIL, {"study": EVIL, "trial": "1"}
    status["outcome"]["last_lines"] = [EVIL]
    run_folder.write_json(failed / run_folder.STATUS, status)
    return home


@pytest.fixture(scope="module")
def links(home: Path) -> Iterator[Links]:
    """A page at every address of this machine."""
    port = free_port()
    command = [sys.executable, "-m", "workbench", "ui", "--address", "0.0.0.0", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--home", str(home)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as page:
        assert page.stdout is not None
        page.stdout.readline()
        tokens = [page.stdout.readline().partition("?token=")[2].strip() for _ in range(2)]
        yield Links(*(f"http://127.0.0.1:{port}/?token={token}" for token in tokens))
        page.terminate()


def watched(tab: Visit) -> list[str]:
    """What the browser complains about from now on."""
    said: list[str] = []
    tab.page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.page.on("pageerror", lambda error: said.append(str(error)))
    return said


@pytest.mark.drawn(1, of="pages beyond this machine")
def test_the_link_opens_the_page_once_and_the_cookie_afterwards(
    links: Links, visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    said = watched(tab)
    base = links.owner.partition("/?")[0]
    assert tab.page.goto(base).status == 401
    assert tab.page.goto(f"{base}/?token=wrong-wrong-wrong").status == 403
    said.clear()
    tab.open(links.owner)
    assert "token" not in tab.page.url
    tab.open(f"{base}/live")
    tab.page.wait_for_selector(".st-key-live-phases .main-svg")
    tab.open(f"{base}/tune")
    tab.page.wait_for_selector(".st-key-tune-trials .main-svg")
    assert [line for line in said if "Content Security Policy" in line or "Refused" in line] == []
    cookies = {cookie["name"]: cookie for cookie in tab.page.context.cookies()}
    own = cookies[next(name for name in cookies if name.startswith("workbench-"))]
    assert own["httpOnly"] and own["sameSite"] == "Lax"
    assert tab.external() == []


@pytest.mark.drawn(1, of="pages beyond this machine")
def test_the_readers_link_shows_everything_and_steers_nothing(
    links: Links, visit: Callable[[str], Visit], home: Path
) -> None:
    tab = visit("light")
    tab.open(links.reader)
    base = links.owner.partition("/?")[0]
    tab.open(f"{base}/tune?view=new")
    tab.page.locator("[data-testid=stMain]").get_by_text("This link shows the page").first.wait_for()
    assert tab.page.locator(".st-key-start").count() == 0, "no form to fill in"
    tab.open(f"{base}/tune?view=watch")
    pause = tab.page.locator(".st-key-pause button").first
    assert pause.is_disabled()
    pause.evaluate("button => { button.disabled = false; button.click() }")
    tab.settle()
    tab.page.locator(".st-key-pause [data-testid=stTooltipHoverTarget]").first.hover()
    tab.page.get_by_text("This link shows the page").locator("visible=true").first.wait_for()
    assert not list((home / STUDIES / "quickstart" / "commands").glob("*.json"))


@pytest.mark.drawn(1, of="pages beyond this machine")
def test_another_sites_page_can_neither_frame_it_nor_open_its_websocket(
    links: Links, visit: Callable[[str], Visit]
) -> None:
    tab = visit("light")
    tab.open(links.owner)
    base = links.owner.partition("/?")[0]
    other = tab.page.context.new_page()
    with closing(other):
        other.route(
            "http://127.0.0.1:1/**",
            lambda route: route.fulfill(body="<title>other</title>", content_type="text/html"),
        )
        other.goto("http://127.0.0.1:1/")
        script = """address => new Promise(done => {
            const socket = new WebSocket(address);
            socket.onopen = () => done("open"); socket.onerror = () => done("refused");
        })"""
        stream = base.replace("http", "ws") + "/_stcore/stream"
        assert other.evaluate(script, stream) == "refused"
        assert tab.page.evaluate(script, stream) == "open"
        framed: Any = other.evaluate(
            """address => new Promise(done => {
                const frame = document.createElement("iframe");
                frame.onload = () => { try { done(frame.contentDocument === null ? "hidden" : "error page") }
                                       catch (error) { done("hidden") } };
                frame.src = address; document.body.append(frame);
            })""",
            base,
        )
        assert framed
        assert not [frame for frame in other.frames[1:] if frame.query_selector("[data-testid=stApp]")]


@pytest.mark.drawn(1, of="pages beyond this machine")
@pytest.mark.parametrize("address", ["/runs?id={run}", "/runs?id={run}&section=Logs", "/live?run={run}"])
def test_names_and_reasons_are_shown_as_they_are_written(
    links: Links, visit: Callable[[str], Visit], home: Path, address: str
) -> None:
    run = next(folder.name for folder in home.iterdir() if folder.name.endswith("03f3"))
    tab = visit("light")
    tab.open(links.owner)
    tab.open(links.owner.partition("/?")[0] + address.format(run=run))
    main = tab.page.locator("[data-testid=stMain]")
    alert = main.locator("[data-testid=stAlert]").first
    alert.wait_for()
    assert EVIL in " ".join(alert.inner_text().split())
    assert main.locator("[data-testid=stBadge], .stMarkdownBadge").filter(has_text="<script>").count() <= 1
    assert main.locator("img[src*=elsewhere], img[src=x], .katex, a[href^=javascript]").count() == 0
    # The browser's Markdown makes a link of a bare address, which then reads as the address that it leads to.
    for link in main.locator("a[href^='https://elsewhere']").all():
        assert link.inner_text() == link.get_attribute("href")
    assert main.locator("strong").filter(has_text="bold").count() == 0
    assert tab.page.title() != "taken"
    assert tab.external() == []
