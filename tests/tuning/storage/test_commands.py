"""Commands: whole files, oldest first, never the same one twice."""

from pathlib import Path

import pytest

from engine.config.errors import InputError
from tuning.storage.commands import pending_commands, send


def test_commands_arrive_in_order_until_answered(tmp_path: Path) -> None:
    ids = [send(tmp_path, "enqueue", {"parallel.tp": 2}, "page"), send(tmp_path, "stop")]
    found = pending_commands(tmp_path, ())
    assert [command.id for command in found] == ids
    assert (found[0].arguments, found[0].by) == ({"parallel.tp": 2}, "page")
    assert [command.command for command in pending_commands(tmp_path, {ids[0]})] == ["stop"]
    assert pending_commands(tmp_path, set(ids)) == []


@pytest.mark.parametrize("content", ["", "[]", '{"command": "stop", "arguments": 3}', '{"arguments": {}}'])
def test_a_file_that_is_no_command_is_named_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "x.json").write_text(content)
    assert [command.command for command in pending_commands(tmp_path, ())] == ["unreadable"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commands").write_text("not a folder")
    with pytest.raises(InputError, match="cannot be written"):
        send(tmp_path, "stop")
