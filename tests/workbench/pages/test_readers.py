"""Whoever came by a link that only shows learns nothing through a form, whatever their browser sends; and nobody's code
runs while one types.

A reader's browser may send values and clicks of every widget that an owner has. So each page is drawn for an owner,
filled in, and what that browser would send is then sent as a reader's.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.config.errors import InputError
from engine.run import run_folder
from tests.support.waiting import wait_until
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import PAGES, ROOT, texts, visit
from tuning.storage.study_folder import JOURNAL
from workbench.pages.cluster import plan
from workbench.pages.widgets.common import ONLY_SHOWN
from workbench.services import access, jobs


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[access.Role], None]:
    """Says who looks from now on."""

    def take(role: access.Role) -> None:
        headers = {access.ROLE_HEADER: role.value}
        monkeypatch.setattr(
            "workbench.pages.widgets.common.st.context", SimpleNamespace(headers=headers, url=None)
        )

    return take


@pytest.fixture
def factory(tmp_path: Path) -> tuple[str, Path]:
    """A workload whose code leaves a file as soon as it is imported, and that file."""
    left, module = tmp_path / "left-behind", tmp_path / "own_model.py"
    module.write_text(
        f"import pathlib\npathlib.Path({str(left)!r}).touch()\n\n"
        "def make(**options):\n    raise ValueError('no such *thing*')\n",
        "utf-8",
    )
    return f"{module}:make", left


def settings(factory: tuple[str, Path]) -> list[str]:
    """What somebody may type as changes, each of which would run code if a workload were looked at."""
    command = f"{{cmd: 'touch {factory[1]}'}}"
    return [
        f"model.workload={factory[0]}",
        f"model.workload=subprocess:getoutput\nmodel.options={command}",
    ]


@pytest.mark.parametrize("role", access.Role)
def test_no_workload_is_imported_while_one_types(
    home: Path, factory: tuple[str, Path], become: Callable[[access.Role], None], role: access.Role
) -> None:
    full_home(home)
    app = visit("runs")
    for typed in settings(factory):
        become(access.Role.OWNER)
        app.run()
        app.text_area(key="run-new-changes").set_value(typed)
        become(role)
        app.run()
        app.run()
        assert not app.exception
        assert not factory[1].exists(), typed
        if role is access.Role.OWNER:
            assert "Legal: 1 rank, 24 steps" in texts(app)
            assert "is looked at once the run starts" in texts(app)
        else:
            assert "Legal" not in texts(app) and ONLY_SHOWN in texts(app)


@pytest.mark.timeout(120)
def test_what_a_workload_is_refused_for_is_said_after_start_until_it_was_read(
    home: Path, factory: tuple[str, Path]
) -> None:
    full_home(home)
    app = visit("runs")
    app.text_area(key="run-new-changes").set_value(settings(factory)[0]).run()
    app.button(key="run-new-start").click().run()
    assert not app.exception
    [job] = jobs.all_jobs(home)
    assert wait_until(lambda: not job.alive)
    assert factory[1].exists(), "the job has looked at it"
    for _ in range(3):
        app.run()
        assert "The run did not start: model.workload=" in app.error[0].value.replace("\\", "")
        assert "no such *thing*" in texts(app)
    app.button(key="answer-run-new-read").click().run()
    assert not app.error


@pytest.mark.parametrize("key", ["data.path", "train.resume", "model.workload"])
def test_a_reader_probes_a_path_and_learns_nothing(
    home: Path, tmp_path: Path, become: Callable[[access.Role], None], key: str
) -> None:
    """The page says the same of what is there and of what is not; an owner is told."""
    RunFolder(home, FakeRun("20260101-000000-aaaa", {}, 0.1, 8)).write(8)
    (tmp_path / "there").write_text("not for everybody\n" * 400, "utf-8")
    said = {}
    for role in access.Role:
        for name in ("there", "gone"):
            become(access.Role.OWNER)
            app = visit("runs")
            app.text_area(key="run-new-changes").set_value(f"{key}={tmp_path / name}")
            become(role)
            app.run()
            assert not app.exception
            said[role, name] = texts(app)
    assert said[access.Role.READER, "there"] == said[access.Role.READER, "gone"]
    if key == "data.path":
        assert said[access.Role.OWNER, "there"] != said[access.Role.OWNER, "gone"]


#: Page -> what else to choose on it, so that each of its forms is drawn for an owner; RUN is one that goes.
_CHOSEN: dict[str, tuple[str, dict[str, str], str]] = {
    "run": ("runs", {"id": "RUN"}, ""),
    "live settings": ("runs", {"id": "RUN", "section": "Configuration"}, ""),
    "trace": ("runs", {"id": "RUN", "section": "Trace"}, ""),
    "study": ("runs", {"id": "quickstart"}, ""),
    "live": ("live", {"run": "RUN"}, ""),
    "steps": ("steps", {"run": "RUN"}, ""),
    "watch": ("tune", {"view": "watch", "study": "quickstart"}, ""),
    "new study": ("tune", {"view": "new"}, "model"),
    "new study of a command": ("tune", {"view": "new"}, "command"),
    "new study of a file": ("tune", {"view": "new"}, "file"),
    "new study of an imported file": ("tune", {"view": "new"}, "imported"),
    "plan": ("plan", {"cluster": plan.TYPED}, ""),
}
#: All other pages as they open.
PLACES = _CHOSEN | {
    page: (page, {}, "") for page in PAGES if page not in {chosen for chosen, _, _ in _CHOSEN.values()}
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PLACES)
def test_nothing_that_a_reader_sends_is_read_checked_or_done(
    home: Path,
    tmp_path: Path,
    become: Callable[[access.Role], None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    run, secret = full_home(home), tmp_path / "secret"
    secret.mkdir()
    run_folder.update_status(home / run, labels={"purpose": "train"})  # a trial of a study has fewer forms
    page, query, trained = PLACES[name]
    app = visit(page, **{key: run if value == "RUN" else value for key, value in query.items()})
    for text in (str(secret), f"data.path={secret}"):
        become(access.Role.OWNER)
        app.run()
        if trained:
            group = next(one for one in app.get("button_group") if one.key == "new-trained")
            group.set_value(trained).run()
        assert not app.exception
        assert fill_in(app, text) >= 1, "each page has its saved views"
        before = files_of(home)
        become(access.Role.READER)
        with watching(secret, monkeypatch) as watch:
            app.run()
        assert not app.exception
        assert watch.touched == [], "looked for on the disk"
        assert watch.refused == [], "checked"
        assert files_of(home) == before, "done"
        assert str(secret) not in texts(app)


def test_a_link_to_a_study_becomes_no_path(
    home: Path, tmp_path: Path, become: Callable[[access.Role], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_home(home)
    outside, following = tmp_path / "outside", tmp_path / "following"
    outside.mkdir()
    following.mkdir()
    run_folder.write_json(outside / run_folder.STATUS, {"continued_in": following.name})
    (following / JOURNAL).touch()
    become(access.Role.READER)
    with watching(outside, monkeypatch) as watch:
        app = visit("tune", view="watch", study=f"../../{outside.name}")
    assert not app.exception
    assert watch.touched == []
    assert following.name not in texts(app)
    assert "outside is not in this home" in texts(app)


@pytest.mark.parametrize(
    ("name", "seen"), [("run", "checked"), ("new study of a command", "looked for"), ("plan", "checked")]
)
def test_the_same_of_an_owner_is_seen(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seen: str
) -> None:
    """So the test above can fail."""
    run, secret = full_home(home), tmp_path / "secret"
    page, query, trained = PLACES[name]
    app = visit(page, **{key: run if value == "RUN" else value for key, value in query.items()})
    if trained:
        group = next(one for one in app.get("button_group") if one.key == "new-trained")
        group.set_value(trained).run()
    for field in [*app.text_input, *app.text_area]:
        field.set_value(str(secret))
    with watching(secret, monkeypatch) as watch:
        app.run()
    assert watch.refused if seen == "checked" else watch.touched


def fill_in(app: AppTest, text: str) -> int:
    """Types into everything that takes text and presses all buttons; how many there were. Nothing is sent yet."""
    fields = [one for one in (*app.text_input, *app.text_area) if one.key not in VIEWS]
    choosers = [one for one in app.multiselect if one.proto.accept_new_options]
    uploads = app.get("file_uploader")
    buttons = [one for one in app.button if one.key]
    for switched_off in (*fields, *choosers, *uploads, *buttons):
        switched_off.proto.disabled = False  # which is for the browser alone
    for field in fields:
        field.set_value(text)
    for chooser in choosers:
        chooser.set_value([text])
    for upload in uploads:
        ending = "zip" if ".zip" in upload.proto.type else "yaml"
        upload.set_value((f"given.{ending}", f"name: {text}\n".encode(), "application/octet-stream"))
    for button in buttons:
        button.click()
    return sum(map(len, (fields, choosers, uploads, buttons)))


#: Fields that only narrow what the reader is shown.
VIEWS = ("filter",)


def files_of(home: Path) -> dict[str, int]:
    """What a form could have changed; the index is made anew by whoever looks."""
    found = (path for path in home.rglob("*") if path.is_file() and not path.name.startswith("index.db"))
    return {str(path): path.stat().st_size for path in found}


class Watch:
    """What is asked of the disk with a path in it, and what a page refuses."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self.touched: list[str] = []
        self.refused: list[tuple[str, str]] = []

    def touch(self, what: str, asked: object) -> None:
        if self._path in str(asked) or self._path in os.path.normpath(str(asked)):
            self.touched.append(what)

    def refuse(self, error: InputError) -> None:
        pages = [one.name for one in traceback.extract_stack() if one.filename.startswith(_PAGES)]
        if pages:
            self.refused.append((pages[-1], str(error)))


_PAGES = str(ROOT / "workbench" / "pages")
_WATCHES: list[Watch] = []
_ASKS = ("open", "os.listdir", "os.scandir", "import", "subprocess.Popen", "os.posix_spawn", "os.system")


@cache
def _hook_in() -> None:
    """It cannot be taken out again."""

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if _WATCHES and event in _ASKS:
            for watch in _WATCHES:
                watch.touch(event, arguments)

    sys.addaudithook(audit)


@contextmanager
def watching(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """All that Python tells of opening, listing, importing and starting; it does not tell of asking what a path is."""
    _hook_in()
    watch, make, stat = Watch(path), InputError.__init__, os.stat

    def refuse(error: InputError, *arguments: Any) -> None:
        make(error, *arguments)
        watch.refuse(error)

    def ask(asked: Any, **how: Any) -> os.stat_result:
        watch.touch("os.stat", asked)
        return stat(asked, **how)

    with monkeypatch.context() as patched:
        patched.setattr(InputError, "__init__", refuse)
        patched.setattr(os, "stat", ask)
        _WATCHES.append(watch)
        try:
            yield watch
        finally:
            _WATCHES.remove(watch)
