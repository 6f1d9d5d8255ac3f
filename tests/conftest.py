"""Fixtures that every test may use, and the reasons for which marked tests are skipped."""

import shutil
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.support import drawn

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
