"""Controllers on other hosts: how long a silence means that one is dead, and after an outage of the database."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.run import ownership
from engine.run.ownership import Owner
from tuning.storage.journal import UnreachableError
from tuning.storage.postgres.database import DatabaseControllers

FAR = Owner(7, 5.0, "far")


class Clock:
    """A database that only tells how long each controller was silent."""

    def __init__(self, silent_seconds: float, connected_seconds: float) -> None:
        self.silent_seconds, self.connected_seconds = silent_seconds, connected_seconds
        self.away = False

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if self.away:
            raise UnreachableError("away")
        return [("far", 7, 5.0, 0, 1.0, self.silent_seconds)]


@pytest.mark.parametrize(
    ("silent", "connected", "gone"),
    [(3.0, 999.0, False), (61.0, 999.0, True), (61.0, 5.0, False)],
)
def test_a_silent_controller_is_dead_unless_we_were_away_too(
    tmp_path: Path, silent: float, connected: float, gone: bool
) -> None:
    members = DatabaseControllers(tmp_path, ownership.this_process(), Clock(silent, connected), "first")  # type: ignore[arg-type]
    assert members.may_be_gone(FAR) is gone
    assert members.has(FAR) is (silent < 60)
    assert members.may_be_gone(replace(FAR, pid=8))


def test_nobody_is_judged_while_the_database_is_away(tmp_path: Path) -> None:
    database = Clock(3.0, 999.0)
    members = DatabaseControllers(tmp_path, ownership.this_process(), database, "first")  # type: ignore[arg-type]
    assert [member.host for member in members.living()] == ["far"]
    database.away = True
    with pytest.raises(UnreachableError):
        members.may_be_gone(FAR)
    assert [member.host for member in members.living()] == ["far"]
