"""A box of eight GPUs as far as a machine without one can be it: a run on CPU ranks, sampled through the real
nvidia-ml-py from a library of our own, and what its text, its metrics and its pages make of it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.run import run_folder
from profilers.records.table import Column
from tests.support.gpu.nvml_library import build
from tests.support.gpu.nvml_library.scenario import GIB, Scenario
from tests.support.waiting import wait_until
from tests.support.workbench import prometheus
from tests.workbench.commands.test_bad_input import free_port
from tests.workbench.commands.test_serve import Found, fetched, one
from tests.workbench.pages.conftest import DRAWING_MILLISECONDS, Visit
from workbench.metrics.endpoint import Endpoint
from workbench.records import archive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(build.WHY_NONE is not None, reason=str(build.WHY_NONE)),
]

LOST = 15
#: A reading that is older than two seconds counts no longer.
LONG_SECONDS = 4.0
TRAIN = ["train", "examples/train.yaml", "--device", "cpu", "parallel.dp=2", "batch.global_batch=4",
         "batch.micro_batch=1", "train.steps=100000"]  # fmt: skip


class Box(NamedTuple):
    """The driver, the home, and the one run in it, during which GPU 2 was lost; GPU 7 is divided. ``metrics`` and what
    a Prometheus has ``scraped`` (None without one) are of while it went: a run that is over tells nothing more.
    """

    driver: Scenario
    home: Path
    run: Path
    metrics: Found
    scraped: dict[str, float] | None


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """Two ranks, on GPU 0 and 1 by the driver's word."""
    folder = tmp_path_factory.mktemp("box")
    driver, home = Scenario(folder), folder / "home"
    driver.divide(7, 3)
    driver.change(7, privileged=0)
    command = [sys.executable, "-m", "workbench", *TRAIN, "--home", str(home)]
    with subprocess.Popen(command, env=driver.environment, stdout=subprocess.DEVNULL) as process:
        try:
            run = _lose_a_gpu(driver, home)
            with Endpoint(home, "127.0.0.1", 0, lambda line: None) as endpoint:
                metrics = fetched(endpoint)
                scraped = _scraped(endpoint, folder) if prometheus.WHY_NONE is None else None
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(100)
    assert run_folder.read_json(run / run_folder.SUMMARY)
    return Box(driver, home, run, metrics, scraped)


def _scraped(endpoint: Endpoint, folder: Path) -> dict[str, float]:
    """The power of each GPU as a real server keeps it."""
    target = endpoint.url.removeprefix("http://").removesuffix("/metrics")
    with prometheus.scraping(target, folder, free_port()) as server:
        watts = "max by (gpu) (workbench_gpu_power_watts)"
        assert wait_until(lambda: len(server.query(watts)) == 7, 60.0), server.query(watts)
        return {dict(labels)["gpu"]: value for labels, value in server.query(watts).items()}


def _lose_a_gpu(driver: Scenario, home: Path) -> Path:
    """In the middle of the run, of which some steps were taken; its folder."""
    assert wait_until(lambda: bool(_pids(home)), 120)
    for gpu, pid in enumerate(_pids(home)):
        driver.processes(gpu, (pid, (gpu + 1) * GIB), (1, 5 * GIB))
    [run] = home.glob("2*")

    def readings(field: str) -> Column:
        return archive.records(run / run_folder.RECORDS).table("launcher", "gpu").column(field)

    assert wait_until(lambda: bool(readings("ranks_memory_bytes").count()))
    driver.change(2, lost=LOST)
    assert wait_until(lambda: bool(readings("power_watts").mask.any()))
    driver.change(2, enumerated=0)
    gone = time.time()

    def steps_since() -> int:
        times = archive.records(run / run_folder.RECORDS).table(0, "step").column("start_unix")
        return int((times > gone + LONG_SECONDS).sum())

    assert wait_until(lambda: steps_since() > 10, 120)
    return run


def _pids(home: Path) -> list[int]:
    told = [run_folder.read_json(path) or {} for path in home.glob(f"2*/{run_folder.STATUS}")]
    return [pid for status in told for pid in status.get("rank_pids") or []]


def test_the_text_and_the_metrics_tell_each_gpu(box: Box) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "workbench", "show", box.run.name, "--home", str(box.home)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "busy 93 %, tensor cores 60 %, power 430 W, power at most 430 W" in shown
    assert "GPU 2 did not answer nvml" in shown
    found = box.metrics
    for gpu in (0, 1, 3, 4, 5, 6, 7):
        assert one(found, "workbench_gpu_power_watts", gpu=str(gpu)) == 400 + 10 * gpu
    assert [one(found, "workbench_gpu_ranks_memory_bytes", gpu=str(gpu)) for gpu in (0, 1)] == [GIB, 2 * GIB]
    gone = {(name, dict(labels)["gpu"]) for name, labels in found if name.startswith("workbench_gpu_power")}
    assert ("workbench_gpu_power_watts", "2") not in gone


@pytest.mark.skipif(prometheus.WHY_NONE is not None, reason=str(prometheus.WHY_NONE))
def test_a_real_server_keeps_the_readings_of_each_gpu(box: Box) -> None:
    assert box.scraped == {str(gpu): 400 + 10 * gpu for gpu in range(8) if gpu != 2}


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 800])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_show_eight_gpus(
    box: Box,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    monkeypatch: pytest.MonkeyPatch,
    screenshots: Path | None,
    scheme: str,
    width: int,
) -> None:
    for name, value in box.driver.environment.items():
        monkeypatch.setenv(name, value)
    address, tab = serve(box.home), visit(scheme)
    tab.page.set_viewport_size({"width": width, "height": 950})
    tab.open(f"{address}/live")
    tab.page.wait_for_selector(".st-key-live-gpu .legend .traces")
    legend = tab.page.locator(".st-key-live-gpu .legendtext").all_text_contents()
    assert legend == [f"GPU {gpu}" for gpu in range(8)]
    tab.page.get_by_text("GPU 2 did not answer nvml").wait_for()
    _titles_stay_off_the_panels(tab)
    _picture(tab, screenshots, f"live-{scheme}", width)
    tab.open(f"{address}/machine")
    tab.page.get_by_text("This machine's fingerprint").wait_for()
    tab.page.wait_for_selector("[data-testid=stDataFrame]")
    _picture(tab, screenshots, f"machine-{scheme}", width)
    assert not tab.external()


def _titles_stay_off_the_panels(tab: Visit) -> None:
    """Of the panels side by side, no title of an axis lies on the panel before it."""
    gaps = tab.page.evaluate(
        """() => {
            const drawn = document.querySelector('.st-key-live-gpu .js-plotly-plot');
            const left = drawn.getBoundingClientRect().left, layout = drawn._fullLayout;
            const gap = (axis, title) => drawn.querySelector(title).getBoundingClientRect().left
                - (left + axis._offset + axis._length);
            return [gap(layout.xaxis, '.y2title'), gap(layout.xaxis2, '.y3title')];
        }"""
    )
    assert min(gaps) >= 0, gaps


def _picture(tab: Visit, folder: Path | None, name: str, width: int) -> None:
    """The whole page at its width; only where pictures are asked for."""
    if folder is not None:
        height = tab.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        tab.page.set_viewport_size({"width": width, "height": int(height)})
        tab.page.wait_for_timeout(DRAWING_MILLISECONDS)
        tab.page.screenshot(path=folder / f"gpu-box-{name}-{width}.png")
