"""The files that a browser fetches to draw charts: Plotly, from the installed package, and how figures are drawn.

An address names what is in the file, so that a browser keeps it, and asks again once it is another one. Every page's
answer names them too: a browser fetches them while Python makes the page.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import plotly
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PLOTLY, _CHART = "plotly.min.js", "chart.js"
_FILES = {
    _PLOTLY: Path(plotly.__file__).parent / "package_data" / _PLOTLY,
    _CHART: Path(__file__).parent / "assets" / _CHART,
}
_KEPT, _ASKED_AGAIN = "public, max-age=31536000, immutable", "no-cache"


def content(name: str) -> bytes:
    """What is sent of a file; of the one that draws, with the place of Plotly in it."""
    data = _FILES[name].read_bytes()
    return data.replace(b"PLOTLY", _address(_PLOTLY).encode()) if name == _CHART else data


@cache
def _packed(name: str) -> bytes:
    """Made once: Streamlit's own compression makes it anew for each browser."""
    return gzip.compress(content(name), 6, mtime=0)


@cache
def _version(name: str) -> str:
    return plotly.__version__ if name == _PLOTLY else hashlib.sha256(content(name)).hexdigest()[:12]


def _address(name: str) -> str:
    return f"/workbench/{name}?v={_version(name)}"


#: The script of a chart's component, which Streamlit sends again with each look at it: hence little.
LOADER = f"""const file = import(location.origin + "{_address(_CHART)}");
export default (chart) => {{ let end; file.then((it) => {{ end = it.default(chart); }}); return () => end?.(); }};"""
_LINKS = f"<{_address(_PLOTLY)}>; rel=preload; as=script, <{_address(_CHART)}>; rel=modulepreload"


async def _send_file(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    current = request.query_params.get("v") == _version(name)
    headers = {"Cache-Control": _KEPT if current else _ASKED_AGAIN, "Vary": "Accept-Encoding"}
    if compressed:
        headers["Content-Encoding"] = "gzip"
    body = await run_in_threadpool(_packed if compressed else content, name)
    return Response(body, media_type="text/javascript", headers=headers)


#: Where a browser gets them from: this server.
ROUTES = [Route(f"/workbench/{name}", _send_file) for name in _FILES]


class PreloadMiddleware:
    """Adds to the answer for a page which files its charts will need."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", _LINKS)
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)
