"""Streamlit's login before the pages: who is let in, and who only looks. No provider is asked here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import ROOT, texts
from workbench.pages.widgets import login
from workbench.services.access import Role

LISTED = {"users": ["Ada@example.org"], "readers": ["ben@example.org"]}
SECRETS: dict[str, Any] = {"auth": {"client_id": "x"}, "workbench": LISTED}


@pytest.mark.parametrize(
    ("user", "role"),
    [
        ({"email": "ada@Example.org"}, Role.OWNER),
        ({"email": "ben@example.org", "email_verified": True}, Role.READER),
        ({"email": "ada@example.org", "email_verified": False}, None),
        ({"email": "eve@example.org"}, None),
        ({}, None),
    ],
)
def test_only_listed_people_with_a_verified_address_come_in(user: dict[str, Any], role: Role | None) -> None:
    assert login.role_of(user, LISTED) is role
    assert login.role_of(user, {}) is None


def page(monkeypatch: pytest.MonkeyPatch, user: dict[str, Any]) -> AppTest:
    app = AppTest.from_file(str(ROOT / "workbench" / "pages" / "main.py"), default_timeout=60)
    for name, value in SECRETS.items():
        app.secrets[name] = value
    monkeypatch.setattr(st, "user", user)
    return app.run()


def test_nobody_sees_anything_before_the_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_home(home)
    app = page(monkeypatch, {"is_logged_in": False})
    assert not app.exception
    assert [button.label for button in app.button] == ["Log in"]
    assert "quickstart" not in texts(app)


def test_a_stranger_is_told_that_he_is_not_let_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_home(home)
    app = page(monkeypatch, {"is_logged_in": True, "email": "eve@example.org"})
    assert "eve@example.org is not among the users" in texts(app)
    assert "quickstart" not in texts(app)


@pytest.mark.parametrize(("email", "steers"), [("ada@example.org", True), ("ben@example.org", False)])
def test_a_reader_looks_and_a_user_steers(
    home: Path, monkeypatch: pytest.MonkeyPatch, email: str, steers: bool
) -> None:
    full_home(home)
    app = page(monkeypatch, {"is_logged_in": True, "email": email})
    app = app.switch_page("history/runs.py").run()
    assert not app.exception
    assert [one.disabled for one in app.button if one.key == "run-new-start"] == ([False] if steers else [])
