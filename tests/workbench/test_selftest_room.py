"""``selftest`` without room: for evidence, for its zip, and for temporary files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.selftests import made_up
from tests.workbench.conftest import Run
from workbench.render_selftest import losses
from workbench.selftest import apart, registry, runner
from workbench.selftest.apart import Asked
from workbench.selftest.results import DOCUMENT, Row, Selftest, load, save
from workbench.selftest.scrub import Scrubber
from workbench.selftest.verdict import Verdict, failed, passed

NO_SPACE = os.strerror(errno.ENOSPC)
ASKED = Asked("cpu", 2)


def never() -> bool:
    return False


def quiet(check: registry.Check, row: Row | None) -> None:
    pass


def told(check: registry.Check, scratch: Path) -> Verdict:
    """A verdict without a process; words of its own are left."""
    (scratch / apart.OUTPUT).write_text("words")
    return failed("7 instead of 8") if check.name == "bad" else passed("as it should be")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the disk be full for every file whose path has this part in it."""

    def fill(part: str) -> None:
        write = Path.write_text

        def refuse(path: Path, text: str, **options: str) -> int:
            if part not in str(path):
                return write(path, text, **options)
            path.touch()  # as on a full disk: the name is there, and nothing in it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_text", refuse)

    return fill


def test_a_full_disk_costs_evidence_and_no_verdict(
    tmp_path: Path, full: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "run", lambda check, asked, scratch, stop: told(check, scratch))
    full("checks/bad")
    found = runner.run(tmp_path, [made_up("bad"), made_up("good")], ASKED, Scrubber(), never, quiet)
    assert [(row.name, row.outcome) for row in found.checks] == [("bad", "fail"), ("good", "pass")]
    assert [row.evidence for row in found.checks] == [[], ["checks/good/output.log"]]
    assert found.not_kept == {"checks/bad/output.log": NO_SPACE}
    assert not list((tmp_path / "checks" / "bad").iterdir())
    assert found.complete
    assert load(tmp_path) == found


def test_a_document_that_cannot_be_written_is_told_until_it_can(
    tmp_path: Path, full: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Selftest("x", "0", "cpu", 2, 0.0, ["good"])
    full(DOCUMENT)
    found = save(tmp_path, found)
    assert found.not_kept == {DOCUMENT: NO_SPACE}
    monkeypatch.undo()
    assert save(tmp_path, found).not_kept == {}
    assert load(tmp_path) == Selftest("x", "0", "cpu", 2, 0.0, ["good"])


@pytest.mark.parametrize("json", [True, False])
def test_without_room_for_the_zip_everything_is_told(
    command: Run, tmp_path: Path, full: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, json: bool
) -> None:
    """A folder in the zip's place fails as a full disk does."""

    def answer(check: registry.Check, asked: Asked, scratch: Path, stop: object) -> Verdict:
        (tmp_path / "out.zip").mkdir()
        return told(check, scratch)

    monkeypatch.setattr(apart, "run", answer)
    full("checks/nvml")
    done = command("selftest", "--only", "nvml", "--out", tmp_path / "out", *["--json"] * json)
    assert done.code == 0
    assert f"not kept ({NO_SPACE}): checks/nvml/output.log\n" in done.err
    assert f"no zip: {tmp_path / 'out.zip'} cannot be written (Is a directory)" in done.err
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out", "out.zip"]
    if json:
        assert done.document["zip"] is None
        assert done.document["not_kept"] == {
            "checks/nvml/output.log": NO_SPACE, "out.zip": "Is a directory",
        }  # fmt: skip
        assert done.document["outcomes"]["pass"] == 1
    else:
        assert "1 passed" in done.out
        assert f"evidence to attach to a report: {tmp_path / 'out'}\n" in done.out


def test_many_lost_files_are_one_line() -> None:
    lost = {f"checks/x/{name}": NO_SPACE for name in "abcd"} | {DOCUMENT: NO_SPACE, "checks/y/e": "Other"}
    assert losses(lost) == [
        f"not kept ({NO_SPACE}): {DOCUMENT}, checks/x/a, checks/x/b and 2 more",
        "not kept (Other): checks/y/e",
    ]
