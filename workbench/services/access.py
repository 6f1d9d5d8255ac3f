"""Who may see and who may steer: the token of a page that listens beyond this machine, its cookie, hosts and headers.

One ASGI middleware stands before every route of the page: Streamlit's own, its websocket, its metrics, and ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response

from engine.config.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The token that links carry. Unset, one is made each time that the page begins to listen beyond this machine.
TOKEN_VARIABLE = "WORKBENCH_TOKEN"
LEAST_TOKEN = 16
#: What the page's script is told about who looks; nobody outside can set it.
ROLE_HEADER = "x-workbench-role"
#: Says that the server is up, and no more.
HEALTH = "/_stcore/health"
PARAMETER = "token"
_SAFE = ("GET", "HEAD", "OPTIONS")
_COOKIE_SECONDS = 30 * 86_400
_CLOSED = 1008
#: Streamlit's scripts start from blobs and evaluate; all of it comes from here, and nobody may put it in a frame.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "media-src 'self' data: blob:; connect-src 'self' data: blob:; worker-src 'self' blob:; frame-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Role(StrEnum):
    """What somebody may do: steer, or only look."""

    OWNER = "owner"
    READER = "reader"


def token_from_environment() -> str:
    """The token that somebody has set, else a new one.

    Raises:
        InputError: it is too short to be safe.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        remedy = f"takes at least {LEAST_TOKEN} printable ASCII characters; unset it, and one is made"
        raise InputError(TOKEN_VARIABLE, "(not shown)", remedy)
    return token or secrets.token_urlsafe(32)


def reader_token(token: str) -> str:
    """The token of the links that only show, which does not give away the one that it is made from."""
    return _derive_token(token, "reader")


def role_of(candidate: str, token: str) -> Role | None:
    """Whose token this is; compared in constant time."""
    tokens = {Role.OWNER: token, Role.READER: reader_token(token)}
    return next((role for role, own_token in tokens.items() if _same(candidate, own_token)), None)


def is_local(address: str) -> bool:
    """Whether only programs of this machine reach a server that listens there."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def link(url: str, token: str) -> str:
    """The address that lets its reader in."""
    return f"{url}/?{urlencode({PARAMETER: token})}"


@dataclass(frozen=True, slots=True)
class Rules:
    """``hosts``: names under which the page answers. ``token``: None where everybody on this machine may steer."""

    hosts: frozenset[str]
    token: str | None
    #: Browsers send a host's cookies to all its ports.
    cookie: str = "workbench"

    @classmethod
    def from_hosts(cls, hosts: Iterable[str], token: str | None, port: int) -> Rules:
        """Names as people write them."""
        return cls(frozenset(_plain(host) for host in hosts), token, f"workbench-{port}")


class AccessMiddleware:
    """The middleware: refuses, or passes on with the role and answers with the headers of a page that is safe."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or one websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._answer(HTTPConnection(scope))
        if isinstance(answer, Role):
            headers = MutableHeaders(scope=scope)
            headers[ROLE_HEADER] = answer.value
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _CLOSED})
        else:
            await answer(scope, receive, _with_headers(send))

    def _answer(self, connection: HTTPConnection) -> Role | Response:
        if not _is_one_of(connection.headers.get("host", ""), self._rules.hosts):
            return _refuse(403, "The page does not answer under this name. Allow it with --allow-host NAME.")
        if not _is_own_origin(connection):
            return _refuse(403, "Another site's page may not ask for this.")
        if self._rules.token is None or connection.scope["path"] == HEALTH:
            return Role.OWNER
        if connection.scope["type"] == "http" and PARAMETER in connection.query_params:
            return self._let_in(connection, self._rules.token)
        role = self._role_of_request(connection, self._rules.token)
        if role is None:
            return _refuse(
                401, "Open the link that `workbench ui` printed: it has the token that this page asks for."
            )
        if (
            role is Role.READER
            and connection.scope["type"] == "http"
            and connection.scope["method"] not in _SAFE
        ):
            return _refuse(403, "This link only shows the page.")
        return role

    def _let_in(self, connection: HTTPConnection, token: str) -> Response:
        """The token becomes a cookie, and leaves the address."""
        role = role_of(connection.query_params[PARAMETER], token)
        if role is None:
            return _refuse(
                403, "The token in this link is not the one of this page: was it started again since?"
            )
        others = [(key, value) for key, value in connection.query_params.multi_items() if key != PARAMETER]
        # Of the path alone: two slashes at its front would be another host.
        path = "/" + connection.url.path.lstrip("/\\")
        answer = RedirectResponse(f"{path}?{urlencode(others)}" if others else path, 303)
        answer.set_cookie(
            self._rules.cookie,
            _derive_token(_token_of(role, token), "cookie"),
            max_age=_COOKIE_SECONDS,
            httponly=True,
            samesite="lax",
            secure=connection.url.scheme == "https",
        )
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _role_of_request(self, connection: HTTPConnection, token: str) -> Role | None:
        """By the cookie, or by the header that a scraper sends."""
        scheme, _, candidate = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return role_of(candidate.strip(), token)
        cookie = connection.cookies.get(self._rules.cookie, "")
        return next(
            (role for role in Role if _same(cookie, _derive_token(_token_of(role, token), "cookie"))), None
        )


def bearer_only(app: Any, token: str) -> Any:
    """A WSGI application that answers only to a token of the page, in ``Authorization: Bearer``."""

    def check_token(environ: MutableMapping[str, Any], start_response: Any) -> Any:
        scheme, _, candidate = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() == "bearer" and role_of(candidate.strip(), token) is not None:
            return app(environ, start_response)
        headers = [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain; charset=utf-8")]
        start_response("401 Unauthorized", headers)
        return [b"Send the token that `workbench metrics` printed as Authorization: Bearer TOKEN.\n"]

    return check_token


def _token_of(role: Role, token: str) -> str:
    return token if role is Role.OWNER else reader_token(token)


def _derive_token(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"workbench {purpose}".encode(), hashlib.sha256).hexdigest()


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode())


def _plain(host: str) -> str:
    return host.strip().lower().rstrip(".").strip("[]")


def _is_one_of(host: str, hosts: frozenset[str]) -> bool:
    """Whether a Host header is one name or address of these, with any port; no pattern matches."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.hostname is None or _plain(parts.hostname) not in hosts:
            return False
        return parts.netloc == host and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _is_own_origin(connection: HTTPConnection) -> bool:
    """A browser says which site's page asks: always for a websocket, and for all that changes something."""
    if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE:
        return True
    origin = connection.headers.get("origin")
    if origin is None:
        return bool(connection.scope["type"] == "http")
    host: str = connection.headers.get("host", "")
    return urlsplit(origin).netloc.lower() == host.lower()


def _refuse(status: int, line: str) -> Response:
    page = f"<!doctype html><meta charset=utf-8><title>Workbench</title><h1>{status}</h1><p>{line}</p>\n"
    return HTMLResponse(page, status, headers={"Cache-Control": "no-store"})


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
