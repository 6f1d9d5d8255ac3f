"""Reports: one file with the numbers of the run or the study, which a browser opens without a network."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from engine.run import run_folder
from tests.support.workbench.synthetic import FakeRun, RunFolder
from tests.workbench.conftest import Run
from tests.workbench.pages.conftest import Visit, browser, screenshots, visit
from tests.workbench.pages.homes import full_home
from workbench.analysis import studies
from workbench.home.resolve import resolve
from workbench.services import report

__all__ = ["browser", "screenshots", "visit"]
MARKUP = "</script><img src=x onerror=\"document.title='taken'\"><b>bold</b> & more"


@pytest.fixture
def full(home: Path) -> Path:
    full_home(home)
    return home


def run_of(home: Path, ending: str) -> Path:
    return next(folder for folder in home.iterdir() if folder.name.endswith(ending))


def charts(text: str) -> list[dict[str, object]]:
    found = re.findall(r'<script type="application/json" id="chart-\d+-data">(.*?)</script>', text, re.DOTALL)
    return [json.loads(one) for one in found]


def drawn(values: object) -> list[float]:
    """What a trace draws: Plotly writes an array either as a list or as base64 of its bytes with their type."""
    if isinstance(values, dict):
        return list(np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]))
    assert isinstance(values, list)
    return values


def test_a_run_with_its_numbers_and_figures(full: Path) -> None:
    run = run_of(full, "a7e2")
    text = report.html(full, resolve(full, run.name))
    summary = run_folder.read_json(run / run_folder.SUMMARY) or {}
    assert f"{summary['losses'][-1]:.4f}" in text
    titles = [chart["layout"]["title"]["text"] for chart in charts(text)]  # type: ignore[index]
    assert "Training loss" in titles and "Collectives, per step and rank" in titles
    loss = next(chart for chart in charts(text) if chart["layout"]["title"]["text"] == "Training loss")  # type: ignore[index]
    assert drawn(loss["data"][0]["y"])[-1] == pytest.approx(summary["losses"][-1])  # type: ignore[index]
    assert text.count("Copyright 2012") == 1, "Plotly is in it once"
    assert "batch.micro_batch" in text


def titles_of(text: str) -> list[str]:
    return [chart["layout"]["title"]["text"] for chart in charts(text)]  # type: ignore[index]


def test_a_run_has_the_figures_of_its_page_as_far_as_they_were_recorded(full: Path) -> None:
    """Of a run on GPUs; the other one was killed before anything of its host was read."""
    text = report.html(full, resolve(full, run_of(full, "a7e2").name))
    assert titles_of(text) == [
        "Step time by phase — the slowest rank of each step", "Step time by rank", "Skew between ranks",
        "Own work, by rank and step", "Communication by axis in the mean step", "Collectives, per step and rank",
        "Training loss", "Memory by rank — resident set", "Processor cores", "Processor time by rank", "Host",
        "Network and disk", "GPUs",
    ]  # fmt: skip
    heat = next(chart for chart in charts(text) if "Own work" in chart["layout"]["title"]["text"])  # type: ignore[index]
    assert heat["data"][0]["y"] == ["rank 0", "rank 1", "rank 2", "rank 3"]  # type: ignore[index]
    without = report.html(full, resolve(full, run_of(full, "03f3").name))
    assert "GPUs" not in titles_of(without) and "Own work, by rank and step" in titles_of(without)


def test_a_long_run_makes_no_large_file(home: Path) -> None:
    """Ten times the steps and readings of four ranks on GPUs add no more than a megabyte."""

    def size(steps: int) -> int:
        run = FakeRun(f"20260101-000000-{steps:04x}", {"parallel.dp": 4}, 0.1, steps, gpus=4)
        RunFolder(home, run).write(steps)
        return len(report.html(home, resolve(home, run.id)))

    small = size(300)
    assert small < 6_000_000, "Plotly is 4.8 MB of it"
    assert size(3_000) - small < 1_000_000


def test_a_study_with_its_result_trials_and_best_run(full: Path) -> None:
    text = unescape(report.html(full, resolve(full, "quickstart")))
    result = studies.document(full / "studies" / "quickstart").result
    for line in result.result_lines:
        assert line in text
    for row in result.trials:
        assert row.run is None or row.run in text
    assert result.best is not None and f"The best run, {result.best.run}" in text
    assert "ran out of memory" in text


def test_text_of_people_stays_text(full: Path) -> None:
    run = run_of(full, "03f3")
    status = run_folder.read_json(run / run_folder.STATUS) or {}
    status["outcome"]["reason"], status["outcome"]["last_lines"] = MARKUP, [MARKUP]
    status["labels"] = {"study": MARKUP, "trial": "1"}
    run_folder.write_json(run / run_folder.STATUS, status)
    text = report.html(full, resolve(full, run.name))
    assert MARKUP not in text
    assert MARKUP in unescape(text)
    assert "<img" not in text.partition("<script>")[0]


def test_the_command_writes_a_new_file_and_never_over_another(
    full: Path, tmp_path: Path, command: Run
) -> None:
    out = tmp_path / "best.html"
    done = command("report", "quickstart", "--out", out, "--json").document
    assert done == {"id": "quickstart", "kind": "study", "file": str(out), "bytes": out.stat().st_size}
    before = out.read_bytes()
    command("report", "a7e2", "--out", out).refused("--out", "exists already")
    command("report", "a7e2", "--out", tmp_path / "nowhere" / "x.html").refused("--out", "cannot be written")
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_run_that_measured_nothing_says_so(home: Path) -> None:
    run = RunFolder(home, FakeRun("20260101-000000-aaaa", {}, 0.1, 5, "crashed", "it was a mistake")).folder
    text = report.html(home, resolve(home, run.name))
    assert "<h1>20260101-000000-aaaa</h1>" in text


@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="pages beyond this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_it_from_the_file_alone(
    full: Path, tmp_path: Path, visit: Callable[[str], Visit], screenshots: Path | None, scheme: str
) -> None:
    out = report.write_report(full, resolve(full, "quickstart"), tmp_path / "study.html")
    tab = visit(scheme)
    said: list[str] = []
    tab.page.on("pageerror", lambda error: said.append(str(error)))
    tab.page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.page.goto(out.as_uri())
    tab.page.wait_for_function(
        "() => document.querySelectorAll('.workbench-chart').length > 5 &&"
        "[...document.querySelectorAll('.workbench-chart')].every(chart => chart.querySelector('.main-svg'))"
    )
    assert [address for address in tab.requests if not address.startswith(("file:", "data:", "blob:"))] == []
    assert said == []
    if screenshots is not None:
        tab.page.screenshot(path=screenshots / f"report-{scheme}.png", full_page=True)
