"""The command line in this process, and a home full of made-up runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.workbench.synthetic import write_home
from workbench import cli


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its one JSON document; fails if there is anything else on stdout."""
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """It was wrong input: exit code 2, one line on stderr with these words, nothing on stdout."""
        assert self.code == 2, self
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error: ")
        assert not self.out
        assert [word for word in words if word not in self.err] == [], self.err


Run = Callable[..., Done]


@pytest.fixture
def command(home: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process, with a home of the test's own."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Done(code, *capfd.readouterr())

    return run


@dataclass(frozen=True)
class Furnished:
    """A home with three finished runs, a study of eight trials, and its live run."""

    home: Path
    live: str


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Furnished:
    """Written once; not to be changed."""
    home = tmp_path_factory.mktemp("furnished")
    return Furnished(home, write_home(home, live_steps=12).run.id)


@pytest.fixture
def own_home(furnished: Furnished, home: Path) -> Furnished:
    """A copy that the test may change; it is also WORKBENCH_HOME."""
    shutil.copytree(furnished.home, home, dirs_exist_ok=True)
    return Furnished(home, furnished.live)
