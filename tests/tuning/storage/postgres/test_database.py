"""Addresses of databases: what they mean, and that no password is shown."""

import builtins
from typing import Any

import pytest

from engine.config.errors import InputError
from tuning.storage.postgres.database import Database, address


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://me@there/db", "postgresql://me@there/db"),
        ("postgres://me:pass%40word@there:5433/db", "postgresql://me@there:5433/db"),
        ("postgresql+psycopg://me:a:b@there/db", "postgresql://me@there/db"),
        ("postgresql:///db?host=/run/pg&user=me&password=hush", "postgresql:///db?host=/run/pg&user=me"),
    ],
)
def test_an_address_without_its_password(given: str, shown: str) -> None:
    found = address(given)
    assert found.shown == shown
    assert repr(found) == f"Address({shown})"
    assert found.for_optuna.partition(":")[0] == "postgresql+psycopg"
    assert found.url.partition("@")[2] == given.partition("@")[2]


def test_a_password_in_an_error_is_not_spoken() -> None:
    found = address("postgresql://me:pass%40word@there/db")
    assert found.error_text("no pass@word,\n or pass%40word") == "no ***, or ***"


@pytest.mark.parametrize(
    "given", ["mysql://me:hush@there/db", "me:hush@there/db", "postgresql://me:hush@there"]
)
def test_what_is_no_address_is_one_line_without_a_password(given: str) -> None:
    with pytest.raises(InputError, match="is no address of a database") as refused:
        address(given)
    assert "hush" not in str(refused.value)


def test_without_a_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def imported(name: str, *rest: Any) -> Any:
        if name == "psycopg":
            raise ImportError(name)
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises(InputError, match="needs psycopg: pip install"):
        Database(address("postgresql://me@there/db"))
