"""What the forms of a new study share in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.services import jobs


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each job that is asked for; none is started."""
    asked: list[list[str]] = []

    def start(where: Path, arguments: list[str]) -> Any:
        asked.append(arguments)
        raise OSError("nothing is started here")

    monkeypatch.setattr(jobs, "start", start)
    return asked
