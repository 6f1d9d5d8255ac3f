"""``selftest`` without room: for evidence, for its zip, and for temporary files."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.run import run_folder
from tests.support.workbench.selftests import made_up
from tests.workbench.conftest import Run
from workbench.selftest import isolation, registry, runner
from workbench.selftest.isolation import SelftestRequest
from workbench.selftest.redaction import Redactor
from workbench.selftest.results import DOCUMENT, Row, Selftest, Verdict, load, make_failure, make_pass, save
from workbench.selftest.worker import ANSWER
from workbench.terminal.selftest import losses

NO_SPACE = os.strerror(errno.ENOSPC)
ASKED = SelftestRequest("cpu", 2)


def never() -> bool:
    return False


def quiet(check: registry.Check, row: Row | None) -> None:
    pass


def told(check: registry.Check, scratch: Path) -> Verdict:
    """A verdict without a process; words of its own are left."""
    (scratch / isolation.OUTPUT).write_text("words")
    return make_failure("7 instead of 8") if check.name == "bad" else make_pass("as it should be")


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
    monkeypatch.setattr(isolation, "run", lambda check, asked, scratch, stop: told(check, scratch))
    full("checks/bad")
    found = runner.run(tmp_path, [made_up("bad"), made_up("good")], ASKED, Redactor(), never, quiet)
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
    """A file that came to the zip's place during the checks is somebody's, and stays."""

    def answer(check: registry.Check, asked: SelftestRequest, scratch: Path, stop: object) -> Verdict:
        (tmp_path / "out.zip").write_text("precious")
        return told(check, scratch)

    monkeypatch.setattr(isolation, "run", answer)
    full("checks/nvml")
    done = command("selftest", "--only", "nvml", "--out", tmp_path / "out", *["--json"] * json)
    assert done.code == 0
    assert f"not saved ({NO_SPACE}): checks/nvml/output.log\n" in done.err
    assert f"no zip: {tmp_path / 'out.zip'} cannot be written (File exists)" in done.err
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out", "out.zip"]
    assert (tmp_path / "out.zip").read_text() == "precious"
    if json:
        assert done.document["zip"] is None
        assert done.document["not_kept"] == {
            "checks/nvml/output.log": NO_SPACE, "out.zip": "File exists",
        }  # fmt: skip
        assert done.document["outcomes"]["pass"] == 1
    else:
        assert "1 passed" in done.out
        assert f"evidence to attach to a report: {tmp_path / 'out'}\n" in done.out


def test_many_lost_files_are_one_line() -> None:
    lost = {f"checks/x/{name}": NO_SPACE for name in "abcd"} | {DOCUMENT: NO_SPACE, "checks/y/e": "Other"}
    assert losses(lost) == [
        f"not saved ({NO_SPACE}): {DOCUMENT}, checks/x/a, checks/x/b and 2 more",
        "not saved (Other): checks/y/e",
    ]


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets this process believe that so many bytes are free for temporary files."""

    def leave(free: int) -> None:
        def refuse(path: Path, data: bytes) -> int:
            path.touch()
            if len(data) > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return len(data)

        monkeypatch.setattr(Path, "write_bytes", refuse)

    return leave


FULL = f"the folder for temporary files takes no more ({NO_SPACE}); free room there, or set TMPDIR to another one"
SAID = f"OSError: [Errno {errno.ENOSPC}] {NO_SPACE}"


@pytest.mark.parametrize(
    ("code", "said", "free", "outcome", "reason"),
    [
        (1, "", 0, "not_possible", f"{FULL}: its process died without a verdict: exit code 1"),
        (1, SAID, 2**20, "not_possible", f"{FULL}: its process died without a verdict: exit code 1 ({SAID})"),
        (1, SAID, 2**30, "fail", f"its process died without a verdict: exit code 1 ({SAID})"),
        (1, "words", 2**20, "fail", "its process died without a verdict: exit code 1 (words)"),
        (-signal.SIGBUS, "", 0, "not_possible", f"{FULL}: its process died without a verdict: SIGBUS"),
        (-signal.SIGSEGV, "", 0, "fail", "its process died without a verdict: SIGSEGV"),
    ],
)
def test_a_full_folder_for_temporary_files_is_named(
    tmp_path: Path,
    little_room: Callable[[int], None],
    code: int, said: str, free: int, outcome: str, reason: str,
) -> None:  # fmt: skip
    """A check that died there is no failure, since nothing is known; one that says it is full is believed."""
    (tmp_path / isolation.OUTPUT).write_text(said)
    little_room(free)
    verdict = isolation._answer(code, tmp_path)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert [path.name for path in tmp_path.iterdir()] == [isolation.OUTPUT]


@pytest.mark.parametrize(
    ("said", "free", "outcome", "reason"),
    [
        (SAID, 2**20, "not_possible", f"{FULL}: {SAID}"),
        (SAID, 2**30, "fail", SAID),
        ("no trace", 2**20, "fail", f"no trace ({FULL})"),
        ("no trace", 2**30, "fail", "no trace"),
    ],
)
def test_a_check_that_fails_for_want_of_room_is_no_failure(
    tmp_path: Path, little_room: Callable[[int], None], said: str, free: int, outcome: str, reason: str
) -> None:
    """Unless there is room: then it was another disk's, and the check's own words say so."""
    little_room(free)
    run_folder.write_json(tmp_path / ANSWER, asdict(make_failure(said, {"steps_count": 1})))
    verdict = isolation._answer(0, tmp_path)
    assert (verdict.outcome, verdict.reason, verdict.measured) == (outcome, reason, {"steps_count": 1})


@pytest.mark.parametrize(("free", "outcome"), [(0, "not_possible"), (2**30, "fail")])
def test_a_check_that_is_too_slow_on_a_full_disk_is_no_failure(
    tmp_path: Path, little_room: Callable[[int], None], free: int, outcome: str
) -> None:
    little_room(free)
    verdict = isolation.run(made_up("hangs", limit_seconds=0.0), ASKED, tmp_path, never)
    assert verdict is not None
    assert verdict.outcome == outcome
    assert verdict.reason.startswith(FULL) == (free == 0)
    assert verdict.reason.endswith("took longer than its limit of 0 s, and was ended")


@pytest.mark.parametrize("broken", ["tempfile.mkdtemp", "engine.run.run_folder.write_json"])
def test_a_check_that_cannot_begin_for_want_of_room_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(broken, refuse)
    found = runner.run(tmp_path, [made_up("good")], ASKED, Redactor(), never, quiet)
    assert [(row.outcome, row.reason) for row in found.checks] == [("not_possible", FULL)]
    assert found.complete
