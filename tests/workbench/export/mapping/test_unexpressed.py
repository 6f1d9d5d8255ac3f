"""Settings that no trainer's table names are lost, and said to be, wherever they are turned."""

from __future__ import annotations

from engine.config.run_config import RunConfig
from workbench.export.mapping.rows import Level
from workbench.export.mapping.unexpressed import COMMON, uncovered_rows


def test_every_setting_has_a_row() -> None:
    assert all(any(row.covers(setting) for row in COMMON) for setting in RunConfig().flat())
    assert uncovered_rows(COMMON) == ()


def test_a_setting_without_a_row_is_lost_once_it_is_turned() -> None:
    key = "overlap.delay"
    (row,) = uncovered_rows(row for row in COMMON if row.setting != key)
    assert (row.setting, row.level) == (key, Level.NOT)
    assert "this project's engine" in row.why
    assert row.arrives(key, {key: RunConfig().overlap.delay})
    assert not row.arrives(key, {key: 1})
