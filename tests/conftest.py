"""Fixtures that every test may use, and the reasons for which marked tests are skipped."""

import gc
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import drawn
from tests.support.descriptors import open_now

#: Of all that a module of tests opened.
MOST_LEFT_OPEN = 24

# A busy machine may take its time over an example.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _own_numbers() -> None:
    """Torch's random numbers of a test are the same whichever tests ran before it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """A page that is run in this process leaves its script as ``__main__``, which ranks of later tests would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="module", autouse=True)
def _few_left_open() -> Iterator[None]:
    """A module's tests give back what they open: the process goes on, and some of what it runs takes no descriptor
    above 1,023. What is made once for all modules (fork server, browser, page server) has some.
    """
    before = Counter(open_now())
    yield
    if len(open_now()) > before.total() + MOST_LEFT_OPEN:
        gc.collect()
    left = Counter(open_now()) - before
    assert len(open_now()) <= before.total() + MOST_LEFT_OPEN, f"left open: {left.most_common(10)}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a WORKBENCH_HOME of its own."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("WORKBENCH_HOME", str(folder))
    return folder


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw cases; skip what this machine cannot run, and say why."""
    drawn.leave_out(items, only_slow=config.option.markexpr == "slow")
    skip_marked(items, "browser", None if shutil.which("chromium") else "no chromium on this machine")
    if any(item.get_closest_marker("gpu") for item in items):
        skip_marked(items, "gpu", why_no_gpu())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"Cases drawn with WORKBENCH_TEST_SEED={drawn.SEED}")


def skip_marked(items: list[pytest.Item], marker: str, reason: str | None) -> None:
    for item in items:
        if reason and item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch finds no GPU on this machine"
