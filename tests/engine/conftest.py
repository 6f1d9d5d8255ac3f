"""Warm ranks shared by the tests of a module: forking them once keeps the suite quick."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.session import Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with its own home folder."""
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm
