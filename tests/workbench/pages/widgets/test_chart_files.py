"""What a browser fetches to draw charts: small, kept, and asked for again once it is another one. By ASGI calls."""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from workbench.pages.widgets import chart_files


class Answer(NamedTuple):
    """What came back."""

    headers: dict[str, str]
    body: bytes


def page(request: Request) -> Response:
    """A page, a page for whoever is not let in, or no page."""
    if request.url.query == "plain":
        return PlainTextResponse("x")
    return HTMLResponse("<h1>x</h1>", 401 if request.url.query == "refused" else 200)


APP = Starlette(
    routes=[*chart_files.ROUTES, Route("/", page)], middleware=[Middleware(chart_files.PreloadMiddleware)]
)


def get(address: str, accept: str = "gzip, deflate") -> Answer:
    """One request."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"box"), (b"accept-encoding", accept.encode())],
        "server": ("box", 80),
    }
    asyncio.run(APP(scope, receive, send))
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(headers, b"".join(message.get("body", b"") for message in sent[1:]))


def named_addresses() -> list[str]:
    """Of Plotly and of what draws, as the answer for a page has them."""
    return re.findall("<(.*?)>", get("/").headers["link"])


def test_the_answer_for_a_page_names_what_its_charts_need() -> None:
    plotly, chart = get("/").headers["link"].split(", ")
    assert "plotly.min.js" in plotly and plotly.endswith("; rel=preload; as=script")
    assert "chart.js" in chart and chart.endswith("; rel=modulepreload")
    assert "link" not in get("/?plain").headers
    assert "link" not in get("/?refused").headers, "whoever is not let in is not sent for more"


def test_both_are_compressed_and_kept() -> None:
    for address in named_addresses():
        answer = get(address)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"].startswith("text/javascript")
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"
        name = address.partition("?")[0].rpartition("/")[2]
        assert gzip.decompress(answer.body) == chart_files.content(name)
        assert len(answer.body) < len(chart_files.content(name)) / 2


def test_a_browser_that_takes_no_compression_gets_none() -> None:
    answer = get(named_addresses()[1], "identity")
    assert "content-encoding" not in answer.headers
    assert answer.body == chart_files.content("chart.js")


def test_an_address_of_another_release_is_asked_again() -> None:
    for address in ("/workbench/plotly.min.js", "/workbench/chart.js?v=older"):
        assert get(address).headers["cache-control"] == "no-cache"


def test_what_draws_knows_where_plotly_is() -> None:
    plotly, chart = named_addresses()
    assert f'"{plotly}"'.encode() in chart_files.content("chart.js")
    assert b"PLOTLY" not in chart_files.content("chart.js")
    assert f'"{chart}"' in chart_files.LOADER
