"""The door before the page: hosts, origins, tokens, roles, headers; without a server, by ASGI and WSGI calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from engine.config.errors import InputError
from workbench.services import access
from workbench.services.access import AccessMiddleware, Role, Rules, reader_token
from workbench.services.page_server import ServerAddress, allowed_hosts

TOKEN = "a-token-of-a-good-length"
HOST = "box:8501"


class Answer(NamedTuple):
    """What came back; ``role`` is None where nothing was passed on."""

    status: int
    headers: dict[str, str]
    role: str | None


def ask(
    token: str | None,
    path: str = "/",
    *,
    method: str = "GET",
    kind: str = "http",
    headers: Mapping[str, str] | None = None,
    hosts: tuple[str, ...] = ("box",),
) -> Answer:
    """One request through the door to an application that answers 200."""
    sent: list[dict[str, Any]] = []
    roles: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found = [value.decode() for name, value in scope["headers"] if name == access.ROLE_HEADER.encode()]
        roles.extend(found)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        else:
            await send({"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    plain, _, query = path.partition("?")
    lines = {"host": HOST} | {name.lower(): value for name, value in (headers or {}).items()}
    scope = {
        "type": kind,
        "scheme": "http",
        "path": plain,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
        "server": ("127.0.0.1", 8501),
    } | ({"method": method} if kind == "http" else {})
    asyncio.run(AccessMiddleware(app, Rules.from_hosts(hosts, token, 8501))(scope, receive, send))
    first = sent[0]
    found = {name.decode().lower(): value.decode() for name, value in first.get("headers", [])}
    closed = {"websocket.accept": 101, "websocket.close": 403}
    assert len(roles) < 2
    return Answer(first.get("status", closed.get(first["type"], 0)), found, roles[0] if roles else None)


def cookie_of(token: str) -> str:
    """The cookie that a link with this token leaves, as a browser sends it back."""
    return ask(TOKEN, f"/?token={token}").headers["set-cookie"].partition(";")[0]


def test_a_local_page_asks_for_nothing_and_everybody_steers() -> None:
    answer = ask(None)
    assert (answer.status, answer.role) == (200, Role.OWNER)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/live",
        "/_stcore/metrics",
        "/_stcore/host-config",
        "/media/x",
        "/workbench/plotly.min.js",
        "/static/x.js",
    ],
)
def test_no_route_opens_without_the_token(path: str) -> None:
    assert ask(TOKEN, path).status == 401
    assert ask(TOKEN, path, headers={"Cookie": "workbench-8501=wrong"}).status == 401
    assert ask(TOKEN, path, headers={"Authorization": "Bearer wrong"}).status == 401
    assert ask(TOKEN, path, headers={"Authorization": f"Bearer {TOKEN}"}).status == 200


def test_health_tells_that_the_server_is_up_and_only_that_path() -> None:
    assert ask(TOKEN, access.HEALTH).status == 200
    assert ask(TOKEN, "/x" + access.HEALTH).status == 401


def test_the_link_leaves_a_cookie_and_takes_the_token_out_of_the_address() -> None:
    answer = ask(TOKEN, f"/tune?study=a%26b&token={TOKEN}")
    assert (answer.status, answer.headers["location"]) == (303, "/tune?study=a%26b")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    again = ask(TOKEN, "/tune", headers={"Cookie": cookie.partition(";")[0]})
    assert (again.status, again.role) == (200, Role.OWNER)


def test_a_wrong_token_is_refused_and_leaves_no_cookie() -> None:
    answer = ask(TOKEN, "/?token=a-token-of-a-good-lengtH")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["//elsewhere.org/x", "///elsewhere.org", "/\\elsewhere.org"])
def test_a_link_never_leads_to_another_host(path: str) -> None:
    location = ask(TOKEN, f"{path}?token={TOKEN}").headers["location"]
    assert re.match(r"/(?![/\\])", location), location


def test_the_readers_link_shows_and_changes_nothing() -> None:
    cookie = {"Cookie": cookie_of(reader_token(TOKEN))}
    assert ask(TOKEN, "/", headers=cookie).role == Role.READER
    upload = {"method": "PUT", "headers": cookie | {"Origin": f"http://{HOST}"}}
    assert ask(TOKEN, "/_stcore/upload_file/a/b", **upload).status == 403
    owner = {"method": "PUT", "headers": {"Cookie": cookie_of(TOKEN), "Origin": f"http://{HOST}"}}
    assert ask(TOKEN, "/_stcore/upload_file/a/b", **owner).status == 200


def test_nobody_gives_himself_a_role() -> None:
    cookie = {"Cookie": cookie_of(reader_token(TOKEN)), access.ROLE_HEADER: "owner"}
    assert ask(TOKEN, "/", headers=cookie).role == Role.READER


@pytest.mark.parametrize(
    "host", ["evil.org", "box.evil.org", "evil.org:8501", "", "box@evil.org", "box:x", "box/..", "::1"]
)
@pytest.mark.parametrize("path", ["/", access.HEALTH, "/_stcore/metrics"])
def test_the_page_answers_under_its_own_names_only(host: str, path: str) -> None:
    assert ask(None, path, headers={"Host": host}).status == 403
    assert ask(None, path, kind="websocket", headers={"Host": host, "Origin": f"http://{host}"}).status == 403


@pytest.mark.parametrize("host", ["box", "BOX:1", "box.", "[::1]:8501", "127.0.0.1:9"])
def test_any_port_and_writing_of_a_name_is_the_same(host: str) -> None:
    assert ask(None, headers={"Host": host}, hosts=("Box", "::1", "127.0.0.1")).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "http://localhost:9999",
        "http://box:9999",
        "http://evil.org",
        "https://box:8501.evil.org",
    ],
)
def test_a_websocket_is_for_the_pages_own_origin(origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    assert ask(None, "/_stcore/stream", kind="websocket", headers=headers).status == 403
    if origin is not None:
        assert ask(None, "/_stcore/upload_file/a/b", method="PUT", headers=headers).status == 403


def test_a_websocket_of_the_page_asks_for_the_cookie_too() -> None:
    own = {"Origin": f"http://{HOST}"}
    assert ask(None, kind="websocket", headers=own).status == 101
    assert ask(TOKEN, kind="websocket", headers=own).status == 403
    opened = ask(TOKEN, kind="websocket", headers=own | {"Cookie": cookie_of(TOKEN)})
    assert (opened.status, opened.role) == (101, Role.OWNER)


@pytest.mark.parametrize(
    ("token", "path"), [(None, "/"), (TOKEN, "/"), (TOKEN, "/?token=x"), (TOKEN, f"/?token={TOKEN}")]
)
def test_every_answer_carries_the_headers(token: str | None, path: str) -> None:
    headers = ask(token, path).headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"


def test_a_token_of_ones_own_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.TOKEN_VARIABLE, TOKEN)
    assert access.token_from_environment() == TOKEN
    for bad in ("", "short", "ä" * 20, "a b\n" * 9):
        monkeypatch.setenv(access.TOKEN_VARIABLE, bad)
        with pytest.raises(InputError, match=access.TOKEN_VARIABLE) as refused:
            access.token_from_environment()
        assert not bad or bad not in str(refused.value)
    monkeypatch.delenv(access.TOKEN_VARIABLE)
    assert len(access.token_from_environment()) >= 40
    assert access.token_from_environment() != access.token_from_environment()


def test_the_readers_token_does_not_give_away_the_owners() -> None:
    assert access.role_of(TOKEN, TOKEN) is Role.OWNER
    assert access.role_of(reader_token(TOKEN), TOKEN) is Role.READER
    assert access.role_of(reader_token(reader_token(TOKEN)), TOKEN) is None
    assert TOKEN not in reader_token(TOKEN)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.3", False),
        ("node17", False),
    ],
)
def test_what_listens_for_this_machine_only(address: str, local: bool) -> None:
    assert access.is_local(address) is local


def test_links_of_a_place() -> None:
    place = ServerAddress("10.0.0.3", 8501, "t&k")
    assert place.link == "http://10.0.0.3:8501/?token=t%26k"
    assert place.reader_link == f"http://10.0.0.3:8501/?token={reader_token('t&k')}"
    assert (
        ServerAddress("127.0.0.1", 8501).link
        == ServerAddress("127.0.0.1", 8501).url
        == "http://127.0.0.1:8501"
    )
    assert "10.0.0.3" in allowed_hosts("10.0.0.3")


def test_metrics_behind_the_same_door() -> None:
    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"numbers"]

    def status(header: str | None) -> str:
        seen: list[str] = []
        environ = {} if header is None else {"HTTP_AUTHORIZATION": header}
        access.bearer_only(app, TOKEN)(environ, lambda line, headers: seen.append(line))
        return seen[0][:3]

    assert [status(None), status("Bearer x"), status(f"Basic {TOKEN}")] == ["401"] * 3
    assert [status(f"Bearer {TOKEN}"), status(f"bearer {reader_token(TOKEN)}")] == ["200"] * 2
